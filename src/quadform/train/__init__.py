"""Training: schedules, one loop, checkpoints that resume bit for bit."""

from quadform.core.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "TranslationScore": ".bleu",
        "score_model": ".bleu",
        "score_translations": ".bleu",
        "translate": ".bleu",
        "average": ".snapshots",
        "average_run": ".snapshots",
        "accuracy": ".score",
        "started_from": ".start",
        "Schedule": ".schedule",
        "TrainConfig": ".config",
        "train": ".loop",
        "Trained": ".loop",
        "Recipe": ".recipes",
        "fit": ".recipes",
        "prepare": ".recipes",
        "score_test": ".recipes",
        "Run": ".runs",
        "open_run": ".runs",
        "Diverged": ".watch",
        "evaluate": ".score",
        "exact_match": ".score",
        "token_cosines": ".watch",
    },
)
