"""The live page of a trained model: attention maps of a sentence, and what is measured in the background."""
