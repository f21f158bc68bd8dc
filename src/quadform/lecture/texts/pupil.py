"""Encoder, decoder and training of the number-words model."""

SENTENCES = {
    "control_number": ("Number", "수"),
    "control_layer": ("Layer", "층"),
    "control_head": ("Head", "헤드"),
    "state_untrained": (
        "The model is untrained: train it in the step “Training”, then come back.",
        "아직 학습하지 않은 모델입니다. “학습” 단계에서 학습시킨 뒤 다시 와 보십시오.",
    ),
    "state_trained": ("The model has been trained for {steps} steps.", "이 모델은 {steps}스텝 학습했습니다."),
    "axis_looks": ("letter that is looked at (■ end)", "바라보는 글자 (■ 끝)"),
    "axis_read": ("English letter that was read (■ end)", "읽은 영어 글자 (■ 끝)"),
    "axis_written": ("Korean letter written before (▶ begin)", "앞서 쓴 한글 (▶ 시작)"),
    "title_encoder": ("Encoder", "인코더"),
    "text_encoder": (
        "The encoder is a stack of blocks without a mask: every letter of the source looks at all letters. This one"
        " reads English number words, letter by letter; it belongs to the model that you will train.",
        "인코더는 마스크 없는 블록을 쌓은 것입니다. 입력의 모든 글자가 모든 글자를 봅니다. 이 인코더는 영어로 쓴 수를"
        " 글자 단위로 읽습니다. 곧 학습시킬 모델의 일부입니다.",
    ),
    "panel_encoder": ("“{words}”: layer {layer}, head {head}", "“{words}”: {layer}층, 헤드 {head}"),
    "says_encoder": (
        "The strongest look: “{row}” at “{column}”, {share}. On average the attention is spread to {spread} of the most"
        " even spread.",
        "가장 강한 시선: “{row}” → “{column}”, {share}. 어텐션이 퍼진 정도(평균): 가장 고른 분포의 {spread}.",
    ),
    "exercise_encoder": (
        "How many scores does one head compute for this word, and how does that grow when the text is twice as long?",
        "이 단어에서 헤드 하나가 계산하는 점수는 몇 개일까요? 글이 두 배로 길어지면 몇 배가 될까요?",
    ),
    "answer_encoder": (
        "{n} tokens (the end token included) give {n} × {n} = {pairs} scores. Twice the length gives four times as"
        " many.",
        "토큰이 {n}개(끝 토큰 포함)이므로 {n} × {n} = {pairs}개입니다. 길이가 두 배가 되면 네 배가 됩니다.",
    ),
    "title_decoder": ("Decoder and cross-attention", "디코더와 교차 어텐션"),
    "text_decoder": (
        "The decoder writes the answer from left to right: under a causal mask it looks at what it has written, then,"
        " by cross-attention, at what the encoder has read. Queries come from the decoder, keys and values from the"
        " encoder.",
        "디코더는 답을 왼쪽부터 씁니다. 인과 마스크 아래에서 지금까지 쓴 글자를 보고, 교차 어텐션으로 인코더가 읽은"
        " 것을 봅니다. 쿼리는 디코더에서, 키와 값은 인코더에서 옵니다.",
    ),
    "panel_cross": (
        "Cross-attention, layer {layer}, head {head}: rows are the letters to write",
        "교차 어텐션, {layer}층, 헤드 {head}: 행은 쓸 글자",
    ),
    "panel_self": ("Causal self-attention of the same layer and head", "같은 층과 헤드의 인과 자기 어텐션"),
    "says_decoder": (
        "To write “{row}” this head looks most at letter {place}, “{column}” ({share}). The model gives the right"
        " answer as a whole a probability of {chance}.",
        "“{row}”: 이 글자를 쓸 때 이 헤드가 가장 많이 보는 글자는 {place}번째 “{column}”입니다({share}). 정답 전체에"
        " 모델이 주는 확률: {chance}.",
    ),
    "exercise_decoder": (
        "The cross-attention map has as many rows as letters to write and as many columns as letters that were read."
        " Why does it need no causal mask?",
        "교차 어텐션 지도는 쓸 글자만큼의 행과 읽은 글자만큼의 열을 가집니다. 왜 여기에는 인과 마스크가 필요 없을까요?",
    ),
    "answer_decoder": (
        "It is {rows} × {columns} here. The source is known as a whole before the first letter is written, so there is"
        " no future to hide in it.",
        "여기서는 {rows} × {columns}입니다. 첫 글자를 쓰기 전에 입력 전체를 이미 알고 있으므로 가릴 미래가 없습니다.",
    ),
    "title_training": ("Training", "학습"),
    "text_training": (
        "The loss is −log of the probability that the model gives to the right next letter; the gradient says how to"
        " change every weight so that it falls. Press the button: the model learns to write English number words in"
        " Korean while you watch.",
        "손실은 모델이 올바른 다음 글자에 주는 확률의 −log입니다. 기울기는 손실이 줄도록 가중치를 어떻게 바꿀지 알려"
        " 줍니다. 단추를 누르면 모델이 영어로 쓴 수를 한글로 옮기는 법을 눈앞에서 배웁니다.",
    ),
    "control_lr": ("Learning rate", "학습률"),
    "control_steps": ("Steps", "스텝 수"),
    "control_train": ("Train", "학습"),
    "action_start": ("Start training", "학습 시작"),
    "action_again": ("Train again from the start", "처음부터 다시 학습"),
    "action_stop": ("Stop", "멈추기"),
    "panel_loss": ("Loss", "손실"),
    "panel_exact": ("Held-out numbers written exactly", "처음 보는 수를 정확히 쓴 비율"),
    "panel_written": ("Numbers it was never trained on", "학습에 쓰지 않은 수"),
    "axis_step": ("step", "스텝"),
    "axis_loss": ("loss, nats per letter", "손실 (글자당 nat)"),
    "axis_exact": ("%", "%"),
    "column_number": ("number", "수"),
    "column_read": ("reads", "읽은 것"),
    "column_wrote": ("writes", "쓴 것"),
    "column_right": ("right answer", "정답"),
    "column_mark": ("", ""),
    "mark_right": ("✓ right", "✓ 맞음"),
    "mark_wrong": ("✗ wrong", "✗ 틀림"),
    "says_training_none": (
        "Not trained yet. A model that knows nothing has a loss of about {chance}; a run of {steps} steps is ready.",
        "아직 학습하지 않았습니다. 아무것도 모르는 모델의 손실은 약 {chance}입니다. 준비된 학습: {steps}스텝.",
    ),
    "says_training_now": (
        "Step {step} of {steps}: the loss is {loss}, it began at {first}. Of {count} held-out numbers {exact} are"
        " written exactly.",
        "{steps}스텝 가운데 {step}스텝째: 손실 {loss}(시작 {first}). 처음 보는 수 {count}개 가운데 정확히 쓴 비율:"
        " {exact}.",
    ),
    "says_training": (
        "After {step} of {steps} steps the loss is {loss} (it began at {first}), and {exact} of {count} held-out"
        " numbers are written exactly. The next steps use this model.",
        "{steps}스텝 가운데 {step}스텝을 마쳤습니다. 손실 {loss}(시작 {first}). 처음 보는 수 {count}개 가운데 정확히 쓴"
        " 비율: {exact}. 다음 단계들은 이 모델을 씁니다.",
    ),
    "says_training_broken": (
        "The training broke down at step {step} of {steps}: a number was not finite. Lower the learning rate and train"
        " again.",
        "{steps}스텝 가운데 {step}스텝째에 학습이 무너졌습니다(유한하지 않은 수). 학습률을 낮추어 다시 학습하십시오.",
    ),
    "exercise_training": (
        "The vocabulary has {vocab} tokens. What is the loss of a model that gives each the same probability?",
        "어휘는 토큰 {vocab}개입니다. 모든 토큰에 같은 확률을 주는 모델의 손실은 얼마일까요?",
    ),
    "answer_training": (
        "−log(1 / {vocab}) = log {vocab} = {chance}. A loss far below means that the model has learned something; 0"
        " means that it is always sure and right.",
        "−log(1 / {vocab}) = log {vocab} = {chance}. 이보다 훨씬 작으면 무언가를 배운 것이고, 0이면 늘 확신하며"
        " 맞는다는 뜻입니다.",
    ),
}
