"""Sentences about training runs, in both languages."""

EN = {
    "training_record": "{design}, {depth} layers of width {dim}, {parameters} parameters, trained on {data}",
    "training_model": "model",
    "training_steps": "steps taken",
    "training_optimizer": "optimizer, largest learning rate",
    "training_warmup": "warm-up steps",
    "training_title": "During training",
    "training_head": "The loss went from {first} to {last}; the learning rate reached {lr}.",
    "training_head_valid": "On held-out data it is {value}.",
    "training_reading": "The line is the training loss, diamonds the loss on held-out data with one standard error."
    " The shaded stretch is the warm-up: the learning rate, drawn below, climbs there. Diamonds that rise"
    " above the line mean that the model overfits.",
    "training_not": "A smooth fall does not mean that the step size was as large as it could be; the ceiling is"
    " measured, not seen. One run is one seed.",
    "training_step": "step",
    "training_loss": "training loss",
    "training_valid": "validation loss",
    "training_stderr": "standard error",
    "training_lr": "learning rate",
    "training_warming": "warm-up",
    "scalar_training_loss": "training loss, last step",
    "scalar_training_valid_loss": "validation loss",
    "scalar_training_valid_exact": "held-out questions answered exactly",
    "scalar_training_cosine": "token cosine after the last block",
}

KO = {
    "training_record": "{design}, 층 {depth}개, 너비 {dim}, 파라미터 {parameters}개, 학습 데이터 {data}",
    "training_model": "모델",
    "training_steps": "학습 단계 수",
    "training_optimizer": "옵티마이저, 가장 큰 학습률",
    "training_warmup": "워밍업 단계 수",
    "training_title": "학습하는 동안",
    "training_head": "손실이 {first}에서 {last}까지 바뀌었습니다. 학습률은 {lr}까지 올라갔습니다.",
    "training_head_valid": "따로 떼어 둔 데이터의 손실: {value}.",
    "training_reading": "선은 학습 손실, 마름모는 따로 떼어 둔 데이터의 손실과 그 표준 오차입니다. 색칠한 구간은"
    " 워밍업으로, 아래에 그린 학습률이 그동안 올라갑니다. 마름모가 선보다 위로 벗어나면 모델이 배우기보다 외우고"
    " 있다는 뜻입니다.",
    "training_not": "매끄럽게 내려간다고 해서 학습률이 가장 컸다는 뜻은 아닙니다. 상한은 눈으로 보는 것이 아니라 재는"
    " 것입니다. 실행 한 번은 시드 하나일 뿐입니다.",
    "training_step": "단계",
    "training_loss": "학습 손실",
    "training_valid": "검증 손실",
    "training_stderr": "표준 오차",
    "training_lr": "학습률",
    "training_warming": "워밍업",
    "scalar_training_loss": "마지막 단계의 학습 손실",
    "scalar_training_valid_loss": "검증 손실",
    "scalar_training_valid_exact": "정확히 답한 검증 문제의 비율",
    "scalar_training_cosine": "마지막 블록 뒤의 토큰 코사인",
}
