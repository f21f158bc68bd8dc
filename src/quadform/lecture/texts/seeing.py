"""Several heads, masks."""

SENTENCES = {
    "title_heads": ("Several heads", "여러 개의 헤드"),
    "text_heads": (
        "One head has one way of looking; several heads, each with its own W_Q, W_K and W_V, look in several ways at"
        " once. Their outputs are put side by side, and one more matrix, W_O, mixes them.",
        "헤드 하나는 한 가지 방식으로만 봅니다. 저마다 W_Q, W_K, W_V를 가진 여러 헤드는 동시에 여러 방식으로 봅니다."
        " 헤드들의 출력을 옆으로 이어 붙인 뒤 행렬 W_O로 섞습니다.",
    ),
    "control_heads": ("Heads", "헤드 수"),
    "panel_head": ("Head {head}", "헤드 {head}"),
    "says_heads": (
        "{heads} heads of width {d_k}. Heads {a} and {b} differ most: they place {share} of their weight on different"
        " words.",
        "너비 {d_k}짜리 헤드 {heads}개입니다. 가장 다른 두 헤드: {a}, {b}. 서로 다른 단어에 두는 가중치: {share}.",
    ),
    "says_heads_one": (
        "One head of width {d_k}: one way of looking for all words. Rows look at columns; every row adds up to 100 %.",
        "너비 {d_k}짜리 헤드 하나: 모든 단어가 한 가지 방식으로 봅니다. 행이 열을 봅니다. 각 행의 합은 100 %입니다.",
    ),
    "exercise_heads": (
        "The width d is 8. Do 8 heads need more parameters than 1 head?",
        "너비 d는 8입니다. 헤드 8개는 헤드 1개보다 파라미터가 더 많이 필요할까요?",
    ),
    "answer_heads": (
        "No. h heads of width d / h share the d columns of W_Q, W_K and W_V; with W_O this layer has {numbers}"
        " parameters for any number of heads (now {heads}).",
        "아닙니다. 너비 d / h인 헤드 h개가 W_Q, W_K, W_V의 열 d개를 나누어 씁니다. W_O까지 합치면 헤드가 몇 개든(지금"
        " {heads}개) 파라미터는 {numbers}개입니다.",
    ),
    "title_masks": ("Masks", "마스크"),
    "text_masks": (
        "A mask sets scores to −∞ before the softmax, so their weight is exactly 0. The causal mask hides the future"
        " from a decoder; the padding mask hides the tokens that only fill up a batch.",
        "마스크는 소프트맥스 전에 점수를 −∞로 만들어 가중치를 정확히 0으로 만듭니다. 인과 마스크는 디코더가 미래를 보지"
        " 못하게 하고, 패딩 마스크는 배치를 채우려고 넣은 토큰을 가립니다.",
    ),
    "control_mask": ("Mask", "마스크"),
    "control_pad": ("Padding tokens", "패딩 토큰"),
    "choice_causal": ("causal", "인과"),
    "choice_padding": ("padding", "패딩"),
    "choice_both": ("both", "둘 다"),
    "choice_none": ("none", "없음"),
    "panel_visible": ("Who may see whom: rows see columns", "누가 누구를 보는가: 행이 열을 봅니다"),
    "panel_attention": ("Attention under this mask", "이 마스크를 쓴 어텐션"),
    "says_masks": (
        "{blocked} of {all} pairs are blocked (crossed out) and have weight 0. “{word}” sees fewest: {count} of the"
        " tokens. Every row still adds up to 100 %.",
        "{all}쌍 가운데 {blocked}쌍이 막혀(빗금) 가중치가 0입니다. 가장 적게 보는 단어: “{word}”(토큰 {count}개)."
        " 그래도 각 행의 합은 100 %입니다.",
    ),
    "says_masks_none": (
        "Nothing is hidden: all {all} pairs are seen. An encoder reads a sentence this way.",
        "가린 것이 없습니다. {all}쌍을 모두 봅니다. 인코더는 문장을 이렇게 읽습니다.",
    ),
    "exercise_masks": (
        "With a causal mask and {n} words, how many pairs (row, column) are seen? Which word sees only itself?",
        "인과 마스크를 쓰고 단어가 {n}개이면 (행, 열) 쌍 가운데 몇 쌍을 볼까요? 자기 자신만 보는 단어는 무엇일까요?",
    ),
    "answer_masks": (
        "n (n + 1) / 2 = {seen} of {all}, which is {share} %. The first word sees only itself.",
        "n (n + 1) / 2 = {seen}쌍, 곧 {all}쌍의 {share} %입니다. 첫 단어는 자기 자신만 봅니다.",
    ),
}
