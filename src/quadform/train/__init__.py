"""Training: data made by our own code, schedules, one loop, checkpoints that resume bit for bit."""

from quadform.core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "Dataset": ".datasets",
        "DATASETS": ".datasets",
        "dataset": ".datasets",
        "Addition": ".datasets",
        "Letters": ".datasets",
        "NumberWords": ".datasets",
        "StandardLibrary": ".corpus",
        "ParallelText": ".corpora",
        "Text": ".corpora",
        "TranslationScore": ".bleu",
        "score_model": ".bleu",
        "score_translations": ".bleu",
        "translate": ".bleu",
        "Masked": ".objectives",
        "Packages": ".objectives",
        "accuracy": ".objectives",
        "started_from": ".objectives",
        "Schedule": ".schedule",
        "TrainConfig": ".config",
        "train": ".loop",
        "Trained": ".loop",
        "Run": ".runs",
        "open_run": ".runs",
        "Diverged": ".watch",
        "evaluate": ".score",
        "exact_match": ".score",
        "token_cosines": ".watch",
    },
)
