"""Sentences about flatness, in both languages."""

EN = {
    "stage_flat": "flatness",
    "record_flat": "Flatness of the loss around {name}",
    "flat_title": "Flatness, here over the least among equal models",
    "flat_axis": "here / least among equal models",
    "flat_least": "least among equal models",
    "flat_lambda_max": "λ_max of H",
    "flat_trace": "trace of H",
    "flat_sam": "SAM",
    "flat_asam": "ASAM",
    "flat_keskar": "Keskar's sharpness",
    "flat_dimension": "effective dimension of H_o",
    "flat_reading": "A bar of 1: no rescaling of queries against keys, values against outputs or ReLU units makes the"
    " model flatter. A long bar: that much of the measure is the scale of the weights. The numbers are here / least.",
    "flat_not": "The least is the least that was found: a bound from above. Flat models need not generalize better.",
}

KO = {
    "stage_flat": "평평함",
    "record_flat": "{name} 주변 손실의 평평함",
    "flat_title": "평평함: 같은 함수를 내는 모델의 최솟값에 대한 비",
    "flat_axis": "이 모델 / 같은 함수를 내는 모델의 최솟값",
    "flat_least": "같은 함수를 내는 모델의 최솟값",
    "flat_lambda_max": "헤시안의 λ_max",
    "flat_trace": "헤시안의 대각합",
    "flat_sam": "SAM",
    "flat_asam": "ASAM",
    "flat_keskar": "Keskar의 날카로움",
    "flat_dimension": "H_o의 유효 차원",
    "flat_reading": "막대가 1이면 쿼리와 키, 값과 출력, ReLU 유닛의 스케일을 옮겨도 더 평평해지지 않습니다. 막대가 길면"
    " 그만큼은 가중치의 스케일에서 온 것입니다. 숫자는 이 모델 / 최솟값입니다.",
    "flat_not": "최솟값은 찾은 것 가운데 가장 작은 값, 곧 위쪽 한계입니다. 평평하다고 반드시 일반화가 더 좋은 것은"
    " 아닙니다.",
}
