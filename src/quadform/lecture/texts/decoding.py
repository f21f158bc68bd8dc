"""Greedy and beam search."""

SENTENCES = {
    "title_decoding": ("Greedy and beam search", "탐욕 탐색과 빔 탐색"),
    "text_decoding": (
        "The model gives every next letter a probability; greedy search takes the likeliest, step by step. Beam search"
        " keeps the k likeliest beginnings and drops the rest, so that a good answer with a poor first letter can still"
        " be found.",
        "모델은 다음 글자마다 확률을 줍니다. 탐욕 탐색은 매번 확률이 가장 높은 글자를 고릅니다. 빔 탐색은 확률이 높은"
        " 앞부분을 k개 남기고 나머지를 버립니다. 그래서 첫 글자의 확률이 낮은 좋은 답도 찾을 수 있습니다.",
    ),
    "control_beam": ("Beam k", "빔 크기 k"),
    "control_letters": ("Letters written", "쓴 글자 수"),
    "panel_tree": ("“{words}”, beam {beam}: letters and log-probabilities", "“{words}”, 빔 {beam}: 글자와 로그 확률"),
    "legend_best": ("answer", "답"),
    "legend_kept": ("kept", "남김"),
    "legend_dropped": ("dropped", "버림"),
    "legend_ended": ("ended", "끝남"),
    "says_decoding_greedy": (
        "Greedy search writes “{greedy}”, log-probability {greedy_log} ({p}).",
        "탐욕 탐색의 답: “{greedy}”, 로그 확률 {greedy_log}({p}).",
    ),
    "says_decoding_same": (
        "Beam {beam} and greedy search write the same, “{best}”, log-probability {best_log} ({p}).",
        "빔 {beam}의 답과 탐욕 탐색의 답이 같습니다: “{best}”, 로그 확률 {best_log}({p}).",
    ),
    "says_decoding_better": (
        "Beam {beam} finds “{best}”, log-probability {best_log} ({p}), better than the greedy “{greedy}” with"
        " {greedy_log}.",
        "빔 {beam}의 답: “{best}”, 로그 확률 {best_log}({p}). 탐욕 탐색의 답 “{greedy}”({greedy_log})보다 낫습니다.",
    ),
    "decoding_right": ("That is right.", "맞습니다."),
    "decoding_wrong": ("Right would be “{right}”.", "정답은 “{right}”."),
    "exercise_decoding": (
        "How many continuations does one step of beam search with k = {beam} compare? Can a larger beam end with a less"
        " likely answer than greedy search?",
        "k = {beam}인 빔 탐색은 한 스텝에 이어 쓸 후보를 몇 개나 비교할까요? 빔을 키웠는데 탐욕 탐색보다 확률이 낮은"
        " 답으로 끝날 수 있을까요?",
    ),
    "answer_decoding": (
        "{beam} × {vocab} = {scored}, each by the sum of its log-probabilities. It can: the greedy path may be pushed"
        " out of the beam by beginnings that look better and end worse.",
        "{beam} × {vocab} = {scored}개를 로그 확률의 합으로 비교합니다. 그럴 수 있습니다. 처음에 좋아 보이던 앞부분들이"
        " 탐욕 경로를 빔 밖으로 밀어낸 뒤 나쁘게 끝날 수 있기 때문입니다.",
    ),
}
