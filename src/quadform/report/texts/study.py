"""Sentences about studies that are not whole, in both languages."""

EN = {
    "notice_missing": "This report is incomplete. Not measured, or not finished: {stages}. Run the same command with"
    " --resume to continue.",
    "notice_partial": "The time was up before everything was measured; these numbers are partial: {parts}.",
    "stage_lr": "learning rate",
    "stage_spectrum": "spectrum",
    "stage_point": "kind of point",
    "stage_signal": "signal through depth",
    "stage_training": "training",
    "stage_why": "what each component does",
    "stage_attention": "exact Hessian of one layer",
    "stage_compare": "designs side by side",
    "stage_taylor": "reach of the quadratic model",
    "stage_landscape": "landscape",
    "stage_precond": "preconditioners",
}

KO = {
    "notice_missing": "이 보고서는 아직 완성되지 않았습니다. 재지 않았거나 끝까지 재지 않은 것: {stages}. 같은 명령에"
    " --resume을 더하면 이어서 잽니다.",
    "notice_partial": "모두 재기 전에 시간이 끝나 일부 수치만 있습니다: {parts}.",
    "stage_lr": "학습률",
    "stage_spectrum": "스펙트럼",
    "stage_point": "점의 종류",
    "stage_signal": "깊이에 따른 신호",
    "stage_training": "학습 과정",
    "stage_why": "각 요소가 하는 일",
    "stage_attention": "한 층의 정확한 헤시안",
    "stage_compare": "설계 비교",
    "stage_taylor": "이차 근사가 맞는 거리",
    "stage_landscape": "손실 지형",
    "stage_precond": "전처리",
}
