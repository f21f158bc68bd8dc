"""Without a GPU, Triton runs in its interpreter. It reads the variable when first imported, so it is set here."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
