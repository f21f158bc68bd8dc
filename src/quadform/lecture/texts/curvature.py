"""Hessian, signal and learning-rate ceiling of the model of the lecture."""

SENTENCES = {
    "control_stack": ("Stack", "스택"),
    "choice_encoder": ("encoder", "인코더"),
    "choice_decoder": ("decoder", "디코더"),
    "control_when": ("Model", "모델"),
    "choice_now": ("as it is now", "지금"),
    "choice_before": ("before training", "학습 전"),
    "state_before": ("This is the model before training.", "학습하기 전의 모델입니다."),
    "title_hessian": ("Its Hessian", "이 모델의 헤시안"),
    "text_hessian": (
        "The gradient says where the loss falls; the Hessian says how fast the gradient itself changes, for every pair"
        " of weights. It is far too large to write down, so quadform multiplies it with random vectors and estimates"
        " the size of every block.",
        "기울기는 손실이 어디로 줄어드는지 말해 주고, 헤시안은 가중치 쌍마다 기울기가 얼마나 빨리 바뀌는지 말해 줍니다."
        " 다 적기에는 너무 크므로 quadform은 무작위 벡터를 곱해 블록마다 크기를 추정합니다.",
    ),
    "control_products": ("HVPs per block", "블록당 HVP"),
    "panel_blocks": ("Size of the Hessian block of two matrices", "두 행렬 사이 헤시안 블록의 크기"),
    "panel_diagonal": ("Each matrix with itself", "각 행렬과 자기 자신"),
    "says_hessian": (
        "The largest block is {a}·{b}: {norm} ± {error} (estimate). The values' own block is {ratio} times as large as"
        " the queries'.",
        "가장 큰 블록: {a}·{b}, {norm} ± {error}(추정). 값 행렬의 블록 크기: 쿼리 행렬의 {ratio}배.",
    ),
    "exercise_hessian": (
        "One learning rate serves all matrices in plain gradient descent. What do blocks of very different size mean"
        " for it, and what does Adam do about it?",
        "단순한 경사 하강법은 모든 행렬에 같은 학습률을 씁니다. 블록의 크기가 크게 다르면 무엇이 문제일까요? Adam은"
        " 이것을 어떻게 다룰까요?",
    ),
    "answer_hessian": (
        "The rate must suit the sharpest block and is then too small for flat ones (here value : query = {ratio} : 1)."
        " Adam divides every step by the size of past gradients, so each matrix gets its own rate. The estimates come"
        " from {products} HVPs; their standard errors are at most {worst} %.",
        "학습률은 가장 가파른 블록에 맞춰야 하고, 그러면 평평한 블록에는 너무 작습니다(여기서 값 : 쿼리 = {ratio} : 1)."
        " Adam은 지난 기울기의 크기로 나누어 행렬마다 다른 학습률을 씁니다. 추정에 쓴 HVP는 {products}번, 표준 오차는"
        " 최대 {worst} %입니다.",
    ),
    "title_signal": ("Its signal", "이 모델의 신호"),
    "text_signal": (
        "Going up, the signal must keep the letters apart; going back, the gradient must reach the first block. Both"
        " are read off one pass through the model and back.",
        "앞으로 갈 때 신호는 글자들을 서로 다르게 유지해야 하고, 뒤로 갈 때 기울기는 첫 블록까지 닿아야 합니다. 모델을"
        " 한 번 지나갔다 돌아오면 둘 다 읽을 수 있습니다.",
    ),
    "control_batch": ("Numbers in the batch", "배치의 수"),
    "label_encoder": ("encoder {layer}", "인코더 {layer}"),
    "label_decoder": ("decoder {layer}", "디코더 {layer}"),
    "panel_alike": ("How alike the letters are after a block", "블록을 지난 뒤 글자들이 닮은 정도"),
    "panel_gradient": ("Size of the gradient in a block", "블록의 기울기 크기"),
    "says_signal": (
        "The letters are most alike after {block}: a mean cosine of {cosine} (untrained: {then}; 1 would be a"
        " collapse). The largest gradient of a block is {ratio} times the smallest.",
        "글자들이 가장 닮은 곳: {block}, 평균 코사인 {cosine}(학습 전 {then}, 1이면 붕괴). 블록 기울기의 최대와"
        " 최소의 비: {ratio}.",
    ),
    "says_signal_collapse": (
        "After {block} the mean cosine is {cosine} (untrained: {then}): the letters are nearly alike, which is called"
        " rank collapse. The largest gradient of a block is {ratio} times the smallest.",
        "{block}: 평균 코사인 {cosine}(학습 전 {then}). 글자들이 거의 같아졌습니다(랭크 붕괴). 블록 기울기의 최대와"
        " 최소의 비: {ratio}.",
    ),
    "exercise_signal": (
        "A gradient that shrinks by half in every block: how much of it is left after 24 blocks, and which step of this"
        " lecture prevents that?",
        "블록마다 기울기가 절반으로 줄어든다면 24개 블록 뒤에는 얼마나 남을까요? 이 강의의 어느 단계가 이것을 막을까요?"
        "",
    ),
    "answer_signal": (
        "2⁻²⁴, about 6 in 100 million. The residual connection passes the gradient on unchanged beside every block;"
        " here the blocks differ by a factor of {ratio} only.",
        "2⁻²⁴, 곧 1억 분의 6쯤입니다. 잔차 연결이 블록 옆으로 기울기를 그대로 전해 줍니다. 여기서 블록 사이의 차이는"
        " {ratio}배에 그칩니다.",
    ),
    "title_ceiling": ("Its learning-rate ceiling", "이 모델의 학습률 상한"),
    "text_ceiling": (
        "Along the sharpest direction, with curvature λ_max, a step of gradient descent multiplies a small push by"
        " 1 − η λ_max. Below the ceiling η = 2 / λ_max the push dies out, above it grows.",
        "가장 가파른 방향(곡률 λ_max)에서 경사 하강 한 스텝은 작은 흔들림에 1 − η λ_max를 곱합니다. 학습률 η가 상한 2 /"
        " λ_max보다 작으면 흔들림이 사라지고, 크면 자랍니다.",
    ),
    "control_factor": ("Rate / ceiling", "학습률 / 상한"),
    "panel_push": ("A small push along the sharpest direction", "가장 가파른 방향의 작은 흔들림"),
    "panel_descent": ("Loss of gradient descent at this rate", "이 학습률로 경사 하강할 때의 손실"),
    "axis_descent": ("step of gradient descent", "경사 하강 스텝"),
    "axis_push": ("size / start", "크기 / 처음"),
    "line_measured": ("measured", "측정"),
    "line_foretold": ("|1 − η λ|ᵗ", "|1 − η λ|ᵗ"),
    "says_ceiling_below": (
        "λ_max is {lam} ± {error} (estimate), so the ceiling is {top}. At {factor} times the ceiling theory multiplies"
        " the push by {law} per step; after {steps} steps {grown} of it is left. The loss goes from {first} to {last}.",
        "λ_max: {lam} ± {error}(추정). 상한: {top}. 상한의 {factor}배에서 이론은 흔들림에 스텝마다 {law}배를 곱합니다."
        " {steps}스텝 뒤 남은 흔들림: 처음의 {grown}배. 손실: {first} → {last}.",
    ),
    "says_ceiling_above": (
        "λ_max is {lam} ± {error} (estimate), so the ceiling is {top}. At {factor} times the ceiling theory multiplies"
        " the push by {law} per step; after {steps} steps it has become {grown} times as large. The loss goes from"
        " {first} to {last}.",
        "λ_max: {lam} ± {error}(추정). 상한: {top}. 상한의 {factor}배에서 이론은 흔들림에 스텝마다 {law}배를 곱합니다."
        " {steps}스텝 뒤 커진 흔들림: 처음의 {grown}배. 손실: {first} → {last}.",
    ),
    "says_ceiling_left": (
        "That is not what theory says for fixed curvature: the weights move, and the curvature with them.",
        "곡률이 그대로라면 나올 값과 다릅니다. 가중치가 움직이며 곡률도 바뀌기 때문입니다.",
    ),
    "exercise_ceiling": (
        "At {factor} times the ceiling, by what factor does theory multiply the push in one step? At which rate does it"
        " vanish in a single step?",
        "상한의 {factor}배에서 이론은 한 스텝에 흔들림을 몇 배로 만들까요? 단 한 스텝에 사라지는 학습률은 얼마일까요?",
    ),
    "answer_ceiling": (
        "|1 − 2 × {factor}| = {law}. It vanishes at η = 1 / λ_max, half the ceiling. The weights move meanwhile and"
        " λ_max with them, so the measured line may leave the predicted one. Adam has another ceiling: `quadform lr`.",
        "|1 − 2 × {factor}| = {law}배입니다. η = 1 / λ_max, 곧 상한의 절반에서 사라집니다. 그동안 가중치가 움직이며"
        " λ_max도 바뀌므로 측정선이 예측선에서 벗어날 수 있습니다. Adam의 상한은 다릅니다: `quadform lr`.",
    ),
}
