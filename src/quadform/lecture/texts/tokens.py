"""Tokens and positions."""

SENTENCES = {
    "title_tokens": ("Tokens and positions", "토큰과 위치"),
    "text_tokens": (
        "A Transformer reads numbers, so every word becomes a token, and every token looks up its row of a table."
        " Attention sees all rows at once and in no order; a second row of sines and cosines, added to the first, says"
        " where the word stands.",
        "트랜스포머는 수를 읽습니다. 그래서 단어마다 토큰이 되고, 토큰마다 임베딩 표에서 자기 행을 찾습니다."
        " 어텐션은 모든 행을 한꺼번에 순서 없이 봅니다. 그래서 사인과 코사인으로 만든 위치 행을 더해 단어가 어디에"
        " 있는지 알려 줍니다.",
    ),
    "control_width": ("Width d", "너비 d"),
    "panel_embedding": ("Embedding: one row per word", "임베딩: 단어마다 한 행"),
    "panel_position": ("Position: one row per position", "위치: 자리마다 한 행"),
    "panel_input": ("Their sum: what the first layer reads", "둘의 합: 첫 층이 읽는 입력"),
    "axis_width": ("d numbers", "수 d개"),
    "says_tokens": (
        "{n} words are {n} rows of {d} numbers; “{first}” is token {id}. The first and the last position are"
        " {apart} apart.",
        "단어 {n}개가 수 {d}개짜리 행 {n}개가 되었습니다. “{first}”: {id}번 토큰. 첫 위치와 마지막 위치 사이의 거리:"
        " {apart}.",
    ),
    "says_tokens_twice": (
        "{n} words are {n} rows of {d} numbers. “{word}” stands at {i} and {j}: its embedding is the same twice, and"
        " the positions put the sums {apart} apart.",
        "단어 {n}개가 수 {d}개짜리 행 {n}개가 되었습니다. “{word}”: {i}번째와 {j}번째에 있습니다. 임베딩은 같지만"
        " 위치를 더하면 두 행이 {apart}만큼 떨어집니다.",
    ),
    "exercise_tokens": (
        "Without positions, could the model tell “the cat sees the dog” from “the dog sees the cat”? And what are the"
        " first two numbers of the row of position 1 (positions count from 0)?",
        "위치가 없다면 모델이 “고양이가 개를 본다”와 같은 단어를 순서만 바꾼 문장을 구별할 수 있을까요? 그리고 위치"
        " 1의 행에서 처음 두 수는 얼마일까요? (위치는 0부터 셉니다.)",
    ),
    "answer_tokens": (
        "No: both sentences have the same rows, and attention is a sum over rows. The two numbers are sin(1) and"
        " cos(1): {values}.",
        "구별할 수 없습니다. 두 문장의 행이 모두 같고, 어텐션은 행들의 합이기 때문입니다. 두 수는 sin(1), cos(1)입니다:"
        " {values}.",
    ),
}
