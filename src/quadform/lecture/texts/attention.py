"""Queries, keys and values; one head by hand."""

SENTENCES = {
    "title_projections": ("Queries, keys, values", "쿼리, 키, 값"),
    "text_projections": (
        "Three matrices turn every row x into a query (what am I looking for?), a key (what do I offer?) and a value"
        " (what do I pass on?). The product of a query with a key says how well the two words fit.",
        "세 행렬이 행 x를 쿼리(무엇을 찾는가), 키(무엇을 내놓는가), 값(무엇을 전하는가)으로 바꿉니다."
        " 쿼리와 키의 내적이 크면 두 단어가 잘 맞는다는 뜻입니다.",
    ),
    "control_head_width": ("Width d_k", "너비 d_k"),
    "panel_Q": ("Queries  Q = X W_Q", "쿼리  Q = X W_Q"),
    "panel_K": ("Keys  K = X W_K", "키  K = X W_K"),
    "panel_V": ("Values  V = X W_V", "값  V = X W_V"),
    "panel_fits": ("Query of “{word}” times every key", "“{word}”의 쿼리와 모든 키의 내적"),
    "says_projections": (
        "The query of “{word}” fits the key of “{best}” best: their product is {fit}.",
        "“{word}”의 쿼리에 가장 잘 맞는 키: “{best}”. 내적: {fit}.",
    ),
    "exercise_projections": (
        "X has 8 columns and d_k is {d_k}. How many numbers do W_Q, W_K and W_V hold together, and does the sentence's"
        " length matter?",
        "X의 열은 8개이고 d_k = {d_k}입니다. W_Q, W_K, W_V에는 모두 몇 개의 수가 있을까요? 문장의 길이가 달라지면"
        " 바뀔까요?",
    ),
    "answer_projections": (
        "Each holds 8 × {d_k} = {each}, together {all}. The length does not matter: every word uses the same matrices.",
        "하나에 8 × {d_k} = {each}개, 모두 {all}개입니다. 모든 단어가 같은 행렬을 쓰므로 길이와 상관없습니다.",
    ),
    "title_head": ("One head by hand", "헤드 하나를 손으로"),
    "text_head": (
        "Multiply one query with every key, divide by √d_k, and take the softmax: the weights are positive and add up"
        " to 1. The output is the sum of the values with these weights.",
        "쿼리 하나를 모든 키와 내적하고 √d_k로 나눈 뒤 소프트맥스를 취합니다. 가중치는 양수이고 합이 1입니다. 출력은 이"
        " 가중치로 더한 값들의 합입니다.",
    ),
    "control_sharpness": ("Scores multiplied by", "점수에 곱하는 수"),
    "panel_hand": ("Query of “{word}”: q = {q}", "“{word}”의 쿼리: q = {q}"),
    "column_word": ("word", "단어"),
    "column_key": ("key k", "키 k"),
    "column_fit": ("q · k", "q · k"),
    "column_scaled": ("score", "점수"),
    "column_weight": ("weight", "가중치"),
    "column_value": ("value v", "값 v"),
    "foot_hand": ("output = Σ weight × v = {y}", "출력 = Σ 가중치 × v = {y}"),
    "panel_weights": ("Weights of “{word}”", "“{word}”의 가중치"),
    "says_head": (
        "“{word}” takes most from “{best}”: {share} of its output. The weights are spread to {spread} of the most"
        " even spread possible (entropy).",
        "“{word}”: “{best}”에서 가장 많이 받습니다({share}). 가중치가 퍼진 정도(엔트로피): 가장 고른 분포의 {spread}.",
    ),
    "exercise_head": (
        "Compute the score of “{word}” on “{other}” from the table: q · k, times the scale. What happens to the"
        " weights when all scores are multiplied by 10?",
        "표를 보고 “{word}”의 쿼리와 “{other}”의 키로 점수를 계산해 보십시오: q · k에 배율을 곱합니다. 모든 점수에 10을"
        " 곱하면 가중치는 어떻게 될까요?",
    ),
    "answer_head": (
        "q · k = {product} = {fit}; times {scale} it is {scaled}, a weight of {weight}. Larger scores make the softmax"
        " sharper: the best word takes nearly all. Dividing by √d_k keeps that from happening by width alone.",
        "q · k = {product} = {fit}. 여기에 {scale} 배를 하면 {scaled}, 가중치는 {weight}입니다. 점수가 커지면"
        " 소프트맥스가 날카로워져 가장 잘 맞는 단어가 거의 다 가져갑니다. √d_k로 나누면 너비 때문에 그렇게 되는 일을"
        " 막습니다.",
    ),
}
