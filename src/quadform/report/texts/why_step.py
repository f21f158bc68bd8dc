"""Sentences about one step of a training run, in both languages."""

EN = {
    "stage_why-step": "one step",
    "record_why-step": "Step {step} of {name}",
    "why_step_title": "The step",
    "why_step_layers": "Slope + curvature along the update, by layer",
    "why_step_lr": "learning rate",
    "why_step_row_loss": "loss on its batch",
    "why_step_row_loss_others": "loss on other batches (median)",
    "why_step_row_norm": "gradient norm on its batch",
    "why_step_row_norm_others": "gradient norm on other batches (median)",
    "why_step_row_ceiling": "ceiling on its batch",
    "why_step_row_ceiling_others": "ceiling on other batches",
    "why_step_row_change": "change of the loss on its batch",
}

KO = {
    "stage_why-step": "한 단계",
    "record_why-step": "{name}의 {step}단계",
    "why_step_title": "그 단계",
    "why_step_layers": "갱신 방향의 기울기 + 곡률, 층별",
    "why_step_lr": "학습률",
    "why_step_row_loss": "그 배치의 손실",
    "why_step_row_loss_others": "다른 배치의 손실(중앙값)",
    "why_step_row_norm": "그 배치의 기울기 길이",
    "why_step_row_norm_others": "다른 배치의 기울기 길이(중앙값)",
    "why_step_row_ceiling": "그 배치에서 잰 상한",
    "why_step_row_ceiling_others": "다른 배치에서 잰 상한",
    "why_step_row_change": "그 배치의 손실 변화",
}
