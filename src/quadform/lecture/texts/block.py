"""Residual connections, norms, the feed-forward network."""

SENTENCES = {
    "title_residual": ("Residual and norm", "잔차 연결과 정규화"),
    "text_residual": (
        "Every layer adds its output to its input (the residual connection), so what was there is kept. A norm brings"
        " every row to the same size; without either, a deep stack makes all words alike or lets the numbers explode.",
        "각 층은 출력을 입력에 더합니다(잔차 연결). 그래서 원래 정보가 남습니다. 정규화는 모든 행의 크기를 같게"
        " 맞춥니다. 둘 다 없으면 깊은 모델에서 모든 단어가 비슷해지거나 수가 폭주합니다.",
    ),
    "control_depth": ("Blocks", "블록 수"),
    "control_parts": ("Parts", "구성"),
    "choice_skip": ("residual only", "잔차만"),
    "choice_norm": ("norm only", "정규화만"),
    "choice_neither": ("neither", "둘 다 없음"),
    "panel_cosine": ("How alike the words are", "단어들이 서로 닮은 정도"),
    "panel_size": ("Size of the rows", "행의 크기"),
    "axis_block": ("after block", "블록"),
    "axis_cosine": ("mean cosine", "평균 코사인"),
    "axis_size": ("root mean square", "제곱 평균 제곱근"),
    "says_residual": (
        "Residual and norm: {parts}. After {depth} blocks the mean cosine between words is {cosine}, and the rows are"
        " {size} times as large as at the start.",
        "잔차와 정규화: {parts}. 블록 {depth}개를 지난 뒤 단어 사이의 평균 코사인: {cosine}. 행의 크기: 처음의"
        " {size}배.",
    ),
    "says_residual_bare": ("With neither, the cosine would be {cosine}.", "둘 다 없을 때의 코사인: {cosine}."),
    "says_residual_one": (
        "One word has nothing to be alike with; write two or more. Its row is {size} times as large after {depth}"
        " blocks ({parts}).",
        "단어가 하나뿐이라 견줄 것이 없습니다. 두 개 이상 쓰십시오. 블록 {depth}개를 지난 뒤 행의 크기({parts}): 처음의"
        " {size}배.",
    ),
    "exercise_residual": (
        "A cosine of 1 means that all words point the same way. Why can no later layer repair that?",
        "코사인이 1이면 모든 단어가 같은 방향을 가리킵니다. 왜 뒤의 어떤 층도 이것을 되돌릴 수 없을까요?",
    ),
    "answer_residual": (
        "Equal rows give equal queries, keys and values, and the feed-forward network treats every row alike: equal"
        " rows stay equal. This is called rank collapse.",
        "행이 같으면 쿼리, 키, 값도 같고, 피드포워드 신경망은 모든 행을 똑같이 다룹니다. 그래서 같은 행은 끝까지"
        " 같습니다. 이를 랭크 붕괴라고 합니다.",
    ),
    "title_ffn": ("Feed-forward network", "피드포워드 신경망"),
    "text_ffn": (
        "After attention has mixed the words, the same small network works on every row alone: widen, bend, narrow."
        " The bend (ReLU or GELU) makes the block more than a product of matrices.",
        "어텐션이 단어들을 섞은 뒤, 똑같은 작은 신경망이 행마다 따로 일합니다: 넓히고, 꺾고, 다시 좁힙니다. 꺾는"
        " 함수(ReLU, GELU) 덕분에 블록은 행렬의 곱 이상의 일을 합니다.",
    ),
    "control_ratio": ("d_ff / d", "d_ff / d"),
    "control_activation": ("Activation", "활성화 함수"),
    "choice_relu": ("ReLU", "ReLU"),
    "choice_gelu": ("GELU", "GELU"),
    "panel_before": ("Widen: N W_1, {units} numbers per word", "넓히기: N W_1, 단어마다 수 {units}개"),
    "panel_after_relu": ("Bend: max(0, ·)", "꺾기: max(0, ·)"),
    "panel_after_gelu": ("Bend: x Φ(x)", "꺾기: x Φ(x)"),
    "panel_out": ("Narrow: times W_2, 8 numbers per word again", "좁히기: W_2를 곱해 다시 단어마다 수 8개"),
    "axis_units": ("hidden units", "은닉 유닛"),
    "says_ffn_relu": (
        "ReLU sets {zero} of the hidden numbers to 0. With {units} hidden units the network holds {own} parameters,"
        " {part} of the block's matrices.",
        "ReLU가 0으로 만든 은닉 수: {zero}. 은닉 유닛이 {units}개일 때 이 신경망의 파라미터: {own}개(블록의 행렬"
        " 가운데 {part}).",
    ),
    "says_ffn_gelu": (
        "GELU lets a little through below 0, down to {low}; {zero} of the hidden numbers are exactly 0. With {units}"
        " hidden units the network holds {own} parameters, {part} of the block's matrices.",
        "GELU는 0 아래도 조금 통과시킵니다(최소 {low}). 정확히 0인 은닉 수: {zero}. 은닉 유닛이 {units}개일 때 이"
        " 신경망의 파라미터: {own}개(블록의 행렬 가운데 {part}).",
    ),
    "exercise_ffn": (
        "How many parameters do W_1 and W_2 hold for d = 8 and d_ff = {d_ff}? Does the row of one word depend on the"
        " other words here?",
        "d = 8, d_ff = {d_ff}일 때 W_1과 W_2에는 모두 몇 개의 파라미터가 있을까요? 여기서 한 단어의 행이 다른 단어에"
        " 따라 달라질까요?",
    ),
    "answer_ffn": (
        "2 × 8 × {d_ff} = {own}. The network itself sees one row at a time; other words come in only through the"
        " attention before it.",
        "2 × 8 × {d_ff} = {own}개입니다. 이 신경망은 한 번에 한 행만 봅니다. 다른 단어의 정보는 앞의 어텐션을 거쳐서만"
        " 들어옵니다.",
    ),
}
