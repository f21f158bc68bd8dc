"""Sentences of the pages on learning rates, ablations and comparisons."""

EN = {
    "data_row": "data",
    "record_rate": "Learning-rate ceiling of {name}, {rule}",
    "rate_title": "The largest stable learning rate",
    "rate_reading": "Each bar ends at the largest learning rate at which steps along the sharpest direction do not"
    " grow. The dark stretch is the range over single batches, the dashed line the rate in force at this"
    " step, or your own: it should stand left of the end of your bar."
    " Marks show the test on a copy: triangle down, a perturbation decays; disc, it keeps its size; triangle up, it"
    " grows.",
    "rate_not": "A ceiling is not a recommendation. It belongs to this probe at this step with the preconditioner"
    " frozen; batch noise and later sharpening lower it, and above it networks often move to a flatter region instead"
    " of diverging.",
    "rate_caption": "Logarithmic axis. Yours is the filled bar.",
    "rate_axis": "learning rate",
    "rate_yours": "your rate",
    "rate_now": "rate in force",
    "rate_optimizer": "optimizer",
    "rate_ceiling": "ceiling",
    "rate_rule": "rule",
    "rate_first": "ceiling before the first step",
    "rate_reach": "rate up to which the quadratic model holds along the update",
    "course_title": "Ceiling and learning rate along the run",
    "course_rate": "learning rate",
    "course_share": "rate / ceiling",
    "course_reading": "Below its ceiling the rate is stable at that step. A ring marks steps at which it has reached"
    " {edge} of the ceiling or more: the edge of stability. Each ceiling is an estimate, on the batch of the next step,"
    " with the optimizer's own state.",
    "course_not": "Between the checkpoints nothing was measured. A run may cross its ceiling for a few steps and go on:"
    " it moves to a flatter region.",
    "course_caption": "Logarithmic axis. Measured at the checkpoints the run has kept.",
    "course_short_caption": "Logarithmic axis. Measured along a short run on a copy of the model.",
    "rate_tried": "perturbation at {fraction}× the ceiling",
    "rate_shrinks": "decays",
    "rate_holds": "keeps its size",
    "rate_grows": "grows {factor}× per step",
    "rate_probe": "probe",
    "rate_model": "model",
    "rate_lambda": "largest eigenvalue of H",
    "rate_lambda_P": "largest eigenvalue of P⁻¹H",
    "rate_loss": "loss",
    "record_why": "What each component does: {name}",
    "why_title": "One component removed at a time",
    "why_reading": "Each mark is one measure of a variant over that of the whole model: right of 1 it has grown,"
    " left of 1 it has fallen. Within the grey band nothing is claimed.",
    "why_not": "These are before/after pairs on one model, one probe and one seed. A part that sharpens the loss may"
    " still be worth having.",
    "why_axis": "over the whole model",
    "why_blocks_title": "Query, key and value blocks of each variant",
    "why_blocks_reading": "The further right a point, the sharper the loss along those weights; lines are two standard"
    " errors. Points close together: one step size fits all. Far apart: it does not, and an optimizer"
    " that scales each weight is wanted.",
    "why_blocks_not": "A sharp block is not an important block; and a block with more weights has a larger norm.",
    "why_variant": "variant",
    "why_step": "step",
    "why_caption": "Step {step} of training. Grey: less than {limit} times.",
    "why_blocks_caption": "Step {step} of training.",
    "why_blocks_head": "Norms of value over query: {whole} in the whole model, {other} in {part}.",
    "why_full": "whole model",
    "why_lambda_max": "largest eigenvalue",
    "why_ratio": "value : query",
    "why_ceiling_sgd": "ceiling of plain descent",
    "why_ceiling_adamw": "ceiling of a fresh AdamW",
    "why_negative_curvature": "share of negative curvature",
    "why_H_f_share": "share of H_f",
    "record_compare": "{count} models side by side",
    "compare_title": "Loss after equal time",
    "compare_reading": "The shorter the bar, the lower the loss on held-out data after the same training time.",
    "compare_rank_reading": "How many directions the tokens of a sequence still span after each block, before any"
    " training. A line that falls to 1 has lost them: all tokens point the same way.",
    "compare_not": "A short training on one seed with one learning rate for all is a hint, not a ranking: a design may"
    " start slowly, or want another rate.",
    "compare_caption": "Thin lines: two standard errors of the held-out loss.",
    "compare_rank_caption": "Participation ratio, mean over the sequences of one batch.",
    "compare_loss": "held-out loss",
    "compare_rank": "rank (participation ratio)",
    "compare_rank_title": "The rank of the tokens through depth",
    "compare_design": "design",
    "compare_depth": "blocks",
}

KO = {
    "data_row": "데이터",
    "record_rate": "{name}의 학습률 상한, {rule}",
    "rate_title": "안정한 학습률의 상한",
    "rate_reading": "막대의 끝은 가장 가파른 방향의 걸음이 커지지 않는 가장 큰 학습률입니다. 진한 부분은 배치마다의"
    " 범위, 점선은 이 단계의 학습률(또는 입력한 값)이며 자신의 막대 안쪽에 있어야 합니다."
    " 표시는 복사본에서 작은 섭동으로 시험한 결과입니다:"
    " 아래 세모는 줄어듦, 원은 그대로, 위 세모는 커짐.",
    "rate_not": "상한은 권장값이 아닙니다. 이 측정 배치, 이 단계, 고정된 전처리에만 해당하며 배치 잡음과 이후의 곡률"
    " 증가가 상한을 낮춥니다. 상한을 넘으면 발산하기보다 더 평평한 곳으로 옮겨 가는 일이 많습니다.",
    "rate_caption": "로그 축. 색을 채운 막대가 자신의 옵티마이저입니다.",
    "rate_axis": "학습률",
    "rate_yours": "입력한 학습률",
    "rate_now": "이 단계의 학습률",
    "rate_optimizer": "옵티마이저",
    "rate_ceiling": "상한",
    "rate_rule": "규칙",
    "rate_first": "첫 단계 전의 상한",
    "rate_reach": "갱신 방향에서 이차 근사가 맞는 학습률",
    "course_title": "학습 과정의 상한과 학습률",
    "course_rate": "학습률",
    "course_share": "학습률 / 상한",
    "course_reading": "학습률이 상한보다 작으면 그 단계에서 안정합니다. 고리는 학습률이 상한의 {edge}배 이상인 단계,"
    " 곧 안정성의 경계를 나타냅니다. 상한은 모두 추정값이며, 다음 단계의 배치와 옵티마이저의 상태로 쟀습니다.",
    "course_not": "체크포인트 사이는 재지 않았습니다. 몇 단계 동안 상한을 넘었다가 더 평평한 곳으로 옮겨 가는 일도"
    " 있습니다.",
    "course_caption": "로그 축. 학습이 남긴 체크포인트에서 쟀습니다.",
    "course_short_caption": "로그 축. 모델의 복사본을 짧게 학습하며 쟀습니다.",
    "rate_tried": "상한의 {fraction}배에서 섭동",
    "rate_shrinks": "줄어듦",
    "rate_holds": "그대로",
    "rate_grows": "한 걸음에 {factor}배 커짐",
    "rate_probe": "측정 배치",
    "rate_model": "모델",
    "rate_lambda": "헤시안의 가장 큰 고유값",
    "rate_lambda_P": "전처리한 헤시안의 가장 큰 고유값",
    "rate_loss": "손실",
    "record_why": "각 부분이 하는 일: {name}",
    "why_title": "한 번에 한 부분씩 뺀 결과",
    "why_reading": "표시 하나는 변형의 측정값을 전체 모델의 값으로 나눈 것입니다. 1의 오른쪽은 커짐, 왼쪽은 작아짐."
    " 회색 띠 안에서는 아무것도 주장하지 않습니다.",
    "why_not": "모델 하나, 측정 배치 한 벌, 시드 하나에서의 전후 비교입니다. 손실을 가파르게 하는 부분도 쓸모가 있을 수"
    " 있습니다.",
    "why_axis": "전체 모델에 대한 비",
    "why_blocks_title": "변형마다의 쿼리, 키, 밸류 블록",
    "why_blocks_reading": "점이 오른쪽에 있을수록 그 가중치 방향의 손실이 가파르고, 선은 표준 오차의 두 배입니다."
    " 점들이 가까우면 하나의 학습률로 충분하고, 멀리 떨어져 있으면 가중치마다 스텝 크기를"
    " 조절하는 옵티마이저가 필요합니다.",
    "why_blocks_not": "가파른 블록이 중요한 블록은 아니며, 가중치가 많은 블록은 노름도 큽니다.",
    "why_variant": "변형",
    "why_step": "단계",
    "why_caption": "학습 {step}단계. 회색: {limit}배 미만.",
    "why_blocks_caption": "학습 {step}단계.",
    "why_blocks_head": "밸류 노름 대 쿼리 노름: 전체 모델 {whole}, {part}: {other}.",
    "why_full": "전체 모델",
    "why_lambda_max": "가장 큰 고유값",
    "why_ratio": "밸류 : 쿼리",
    "why_ceiling_sgd": "단순 하강의 상한",
    "why_ceiling_adamw": "새로 시작한 AdamW의 상한",
    "why_negative_curvature": "음의 곡률 비율",
    "why_H_f_share": "함수 부분의 비율",
    "record_compare": "나란히 놓은 모델 {count}개",
    "compare_title": "같은 시간 뒤의 손실",
    "compare_reading": "막대가 짧을수록 같은 시간 학습한 뒤의 검증 손실이 낮습니다.",
    "compare_rank_reading": "학습 전, 블록을 지날 때마다 한 문장의 토큰이 아직 펼치는 방향의 수입니다. 1까지"
    " 떨어지는 선은 방향을 잃은 것으로, 모든 토큰이 같은 쪽을 향합니다.",
    "compare_not": "시드 하나, 모두 같은 학습률의 짧은 학습은 힌트일 뿐 순위가 아닙니다. 느리게 시작하거나 다른"
    " 학습률이 필요한 설계일 수 있습니다.",
    "compare_caption": "가는 선: 검증 손실 표준 오차의 두 배.",
    "compare_rank_caption": "참여 비율, 배치 하나의 문장 평균.",
    "compare_loss": "검증 손실",
    "compare_rank": "랭크 (참여 비율)",
    "compare_rank_title": "깊이에 따른 토큰의 랭크",
    "compare_design": "설계",
    "compare_depth": "블록 수",
}
