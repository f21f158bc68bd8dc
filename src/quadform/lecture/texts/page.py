"""What stands around the steps: bar, controls, exercise, errors."""

SENTENCES = {
    "teach_title": ("quadform: the Transformer, live", "quadform: 트랜스포머 실시간 강의"),
    "teach_heading": ("The Transformer, live", "트랜스포머 실시간 강의"),
    "teach_skip": ("Skip to the step", "본문으로 건너뛰기"),
    "teach_steps": ("Steps", "단계"),
    "teach_step": ("Step {number} of {all}", "{all}단계 가운데 {number}단계"),
    "teach_back": ("Back", "이전"),
    "teach_next": ("Next", "다음"),
    "teach_keys": ("Arrow keys ← → change the step.", "← → 키로 단계를 옮깁니다."),
    "teach_language": ("한국어", "English"),
    "teach_theme": ("Light / dark", "밝게 / 어둡게"),
    "teach_controls": ("Try it", "직접 바꿔 보기"),
    "teach_pictures": ("Pictures", "그림"),
    "teach_says": ("What you see", "지금 보이는 것"),
    "teach_exercise": ("Exercise", "연습 문제"),
    "teach_answer": ("Show the answer", "답 보기"),
    "teach_python": ("The Python behind it", "이 그림을 만드는 파이썬"),
    "teach_copy": ("Copy", "복사"),
    "teach_copied": ("Copied", "복사했습니다"),
    "teach_table": ("The numbers of these pictures", "그림의 수치"),
    "teach_working": ("computing …", "계산하는 중 …"),
    "teach_lost": (
        "Not connected – last result kept. Restart quadform teach, this page reconnects.",
        "연결이 끊겼습니다. 마지막 결과는 그대로입니다. quadform teach 명령을 다시 실행하면 이어집니다.",
    ),
    "teach_noscript": (
        "This page draws with a script; it is switched off.",
        "이 페이지는 스크립트로 그립니다. 스크립트가 꺼져 있습니다.",
    ),
    # controls
    "control_sentence": ("Sentence", "문장"),
    "control_token": ("Word", "단어"),
    "first_sentence": ("the cat sees the dog", "나는 밥을 먹고 밥을 남겼다"),
    "note_words": ("The first {most} words are used.", "처음 {most}개 단어만 씁니다."),
    # errors
    "error_message": (
        "The page sent something the server does not understand.",
        "서버가 이해하지 못하는 것을 페이지가 보냈습니다.",
    ),
    "error_control": ("This step has no control “{got}”.", "이 단계에 없는 조절입니다: “{got}”."),
    "error_range": (
        "{control} takes values from {low} to {high}; got {got}.",
        "{control}: {low} ~ {high} 범위의 수가 필요합니다. 받은 것: {got}.",
    ),
    "error_whole": (
        "{control} takes whole numbers from {low} to {high}; got {got}.",
        "{control}: {low} ~ {high} 범위의 정수가 필요합니다. 받은 것: {got}.",
    ),
    "error_choice": (
        "“{got}” is not among the choices of {control}: {known}.",
        "{control}: “{got}” 대신 다음 가운데 고르십시오: {known}.",
    ),
    "error_letters": ("A sentence has at most {most} letters.", "문장은 {most}자까지 쓸 수 있습니다."),
    "error_words": ("The sentence has no words. Write one or more.", "문장에 단어가 없습니다. 한 단어 이상 쓰십시오."),
    "error_unexpected": (
        "Internal error (please report): {why}. The last picture stays.",
        "내부 오류입니다(알려 주십시오): {why}. 마지막 그림은 그대로입니다.",
    ),
}
