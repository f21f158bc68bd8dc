"""Words every answer uses: the English and the Korean sentence of every key."""

SENTENCES = {
    "parameter_W_Q": ("query", "쿼리"),
    "parameter_W_K": ("key", "키"),
    "parameter_W_V": ("value", "밸류"),
    "parameter_W_O": ("out", "출력"),
    "parameter_W_QK": ("query-key", "쿼리-키"),
    "data_library": (
        "source of Python's standard library, as no data was named",
        "지정한 데이터가 없어 파이썬 표준 라이브러리의 소스 코드를 썼습니다",
    ),
    "data_random": ("random tokens", "무작위 토큰"),
    "data_own": ("the model's own probe", "모델에 딸린 측정 배치"),
    "data_given": ("the batches given", "입력한 배치"),
    "data_split": ("{data}, {split} split", "{data}, {split} 분할"),
    "answer_partial": ("The time was up before everything was measured.", "모두 재기 전에 시간이 끝났습니다."),
    "verdict_undecided": ("undecided", "판단 보류"),
    "verdict_unsure": (
        "Within two standard errors it may lie on either side of a limit: measure with more vectors or more data"
        " before"
        " you act on it.",
        "표준 오차의 두 배 안에서는 기준의 어느 쪽인지 알 수 없습니다. 벡터나 데이터를 더 써서 재고 나서 판단하십시오.",
    ),
    "verdict_open": (
        "This is only a bound: allow more Hessian-vector products before you act on it.",
        "아직 한계값일 뿐입니다. 헤시안-벡터 곱을 더 허용해 재고 나서 판단하십시오.",
    ),
}
