"""The lines a terminal shows around the verdicts: the English and the Korean sentence of every key."""

SENTENCES = {
    "line_probe": ("probe {size}", "측정 배치 {size}"),
    "line_batches": ("{count} batches of {size}", "{count}개, 하나에 {size}"),
    "line_batch_count": ("{count} batches", "{count}개"),
    "line_tokens": ("{size} tokens", "{size} 토큰"),
    "line_step": ("step {step}", "{step}단계"),
    "line_untouched": ("{probe}; model left untouched", "{probe}; 모델은 그대로입니다"),
    "line_loss": ("{probe}, loss {loss}", "{probe}, 손실 {loss}"),
    "line_data": ("data: {data}", "데이터: {data}"),
    "line_partial": ("PARTIAL: {said}", "일부만 측정: {said}"),
    "line_saved": ("saved {folder}", "저장한 폴더: {folder}"),
    "line_saved_next": ("saved {folder}; next: `{command}`", "저장한 폴더: {folder}; 다음 명령: `{command}`"),
    "line_report": ("report: {path}", "보고서: {path}"),
    "line_figures": ("figures: {count} files in {folder}", "그림: {folder} 폴더에 파일 {count}개"),
    "line_missing": ("PARTIAL: not measured to the end: {names}", "일부만 측정: 끝까지 재지 못한 항목은 {names}"),
    # decode
    "line_decoded": (
        "texts decoded: {count}, with {run} at step {step}, {how}",
        "디코딩한 텍스트: {count}개, 모델 {run} ({step}단계), {how}",
    ),
    "line_greedy": ("greedy search", "탐욕 탐색"),
    "line_beam": ("beam search of width {beam}", "폭이 {beam}인 빔 탐색"),
    "line_sampled": (
        "sampled at temperature {temperature}, seed {seed}",
        "표본 추출 (온도 {temperature}, 시드 {seed})",
    ),
    # spectrum
    "line_cost": ("{products} products, {time}, {memory}", "곱 {products}번, {time}, {memory}"),
    "line_negative": (
        "{share} +-{error} % of the eigenvalues are negative.",
        "고유값의 {share} +-{error} %가 음수입니다.",
    ),
    "line_layer": ("layer {number}", "{number}번 층"),
    "line_lives": ("eigenvector of {name}: {place}", "{name} 고유벡터: {place}"),
    "line_head": ("largest head: {head} {share} %", "가장 큰 헤드: {head} {share} %"),
    "line_next": ("next: {values}", "그다음 고유값: {values}"),
    "line_norms": ("{layer} block norms: {norms}", "{layer} 블록 노름: {norms}"),
    # lr
    "line_yours": ("<- yours", "<- 사용 중"),
    "line_reach": (
        "quadratic model along the update: holds up to learning rate {rate}",
        "갱신 방향의 이차 근사: 학습률 {rate}까지 맞습니다",
    ),
    "line_at_least": ("at least {value}", "적어도 {value}"),
    "line_at_most": ("at most {value}", "최대 {value}"),
    "line_per_batch": (
        "per-batch ceiling: {low} to {high} ({count} batches)",
        "배치별 상한: {low} ~ {high} (배치 {count}개)",
    ),
    "line_decay": (
        "weight decay {decay} lowers the ceiling by {share} %",
        "가중치 감쇠 {decay} 때문에 상한이 {share} % 낮아집니다",
    ),
    "line_decay_small": (
        "weight decay {decay} changes the ceiling by less than 0.1 %",
        "가중치 감쇠 {decay}에 따른 상한의 변화는 0.1 % 미만입니다",
    ),
    "line_trials": (
        "loss after {steps} steps at each rate (observed, not predicted): {start} -> {ends}",
        "학습률마다 {steps}단계 뒤의 손실 (예측이 아니라 관측값): {start} -> {ends}",
    ),
    "line_diverges": ("diverges", "발산"),
    "line_along": ("along the run", "실행 전체를 따라"),
    "line_along_short": ("along a short run of {steps} steps on a copy", "복사본을 {steps}단계 짧게 학습하면서"),
    "line_edge": ("edge of stability", "안정성 경계"),
    "line_unconverged": (
        "red: {name} did not converge in {products} products and is only a bound. Allow more products.",
        "red: {name} 값이 곱 {products}번 안에 수렴하지 않아 한계값일 뿐입니다. 곱을 더 허용하십시오.",
    ),
    "line_unseen": (
        "{share} % of the sharpest direction lies where Adam has seen no gradient yet (P = eps), so this ceiling will"
        " change: train a few steps and measure again.",
        "가장 가파른 방향의 {share} %가 Adam이 아직 기울기를 본 적 없는 곳(P = eps)에 있어, 이 상한은 곧 바뀝니다."
        " 몇 단계 학습한 뒤 다시 재십시오.",
    ),
    "line_ceiling": (
        "The ceiling is not a recommendation: batch noise and later sharpening lower it.",
        "상한은 권장값이 아닙니다. 배치 잡음이 있고 나중에 곡률이 커지면 상한은 낮아집니다.",
    ),
    "line_first_risen": (
        "The ceiling at step 0 was {ceiling}: it has risen since, so warm up.",
        "0단계의 상한은 {ceiling}이었고 그 뒤 높아졌으므로 워밍업을 쓰십시오.",
    ),
    "line_first_same": (
        "The ceiling at step 0 was {ceiling}: no reason to warm up.",
        "0단계의 상한은 {ceiling}이었으므로 워밍업이 필요하지 않습니다.",
    ),
    "line_first_fallen": (
        "The ceiling at step 0 was {ceiling}: it has fallen since.",
        "0단계의 상한은 {ceiling}이었고 그 뒤 낮아졌습니다.",
    ),
    "line_no_first": ("The ceiling at step 0 is unknown: {why}.", "0단계의 상한은 알 수 없습니다: {why}."),
    # point
    "line_zero": (
        "eigenvalues up to {zero} count as zero",
        "{zero} 이하의 고유값은 0으로 봅니다",
    ),
    "line_zeros_by": ("{count} of them by {name}", "그 가운데 {count}개: {name}"),
    "line_waiting": (
        "a symmetry, curved until the gradient vanishes: {name}",
        "대칭이지만 기울기가 0이 되기 전에는 휘어 있음: {name}",
    ),
    # landscape, flat, precond, compress
    "line_axis": ("axis: {label}, from {low} to {high}, {count} points", "축: {label}, {low} ~ {high}, 점 {count}개"),
    "line_pairs": ("least: among {count} pairs", "least: 가중치 쌍 {count}개에서 찾은 최솟값"),
    "line_above": (
        "{name}: the search ended above the model itself; its least is at most the value here",
        "{name}: 찾은 값이 지금 값보다 큽니다. 최솟값은 지금 값 이하입니다",
    ),
    "line_not_made": ("not made: {why}", "만들지 못함: {why}"),
    "line_before": ("loss {loss}", "손실 {loss}"),
    "line_held": ("held out {loss}", "따로 둔 배치 {loss}"),
    "line_model_of": ("model of {method}: {folder}", "{method} 모델: {folder}"),
    "line_bits": ("bits: {bits}", "비트: {bits}"),
    # signal
    "line_signal": (
        "after the last block: mean token cosine, participation ratio, norm over input; prediction in [ ]",
        "마지막 블록 뒤: 토큰 코사인 평균, 참여율(유효 랭크), 입력 대비 노름; [ ] 안은 예측",
    ),
    "line_signal_more": (
        "gradient: at the input over the last layer; entropy: of its maximum, least to most head; sink: largest head",
        "gradient: 입력 쪽 / 마지막 층; entropy: 최댓값 대비, 최소 ~ 최대 헤드; sink: 가장 큰 헤드",
    ),
    "line_curve": (
        "{name}: {word} ({depth} blocks of width {width}, {tokens} tokens, {rest})",
        "{name}: {word} (블록 {depth}개, 폭 {width}, 토큰 {tokens}개, {rest})",
    ),
    "line_varying": ("a varying number of", "여러"),
    "line_signal_green": ("alive", "신호가 살아 있음"),
    "line_signal_yellow": ("nearly collapsed", "거의 붕괴"),
    "line_signal_red": ("collapsed", "붕괴"),
    "line_signal_undefined": ("undefined", "정의되지 않음"),
    "line_jacobian": (
        "Jacobian of {name}: singular values {low} to {high}, mean square {square}",
        "{name} 야코비안: 특잇값 {low} ~ {high}, 제곱 평균 {square}",
    ),
    # why, why --step, compare
    "line_why": (
        "{name}: one component removed at a time, same weights, data and seed; {where}",
        "{name}: 요소를 하나씩 빼고 가중치, 데이터, 시드는 같게; {where}",
    ),
    "line_whole": ("whole models, {count} parameters", "모델 전체, 파라미터 {count}개"),
    "line_why_tags": (
        "losses exact; all other numbers are estimates (s.e. in --json)",
        "손실은 정확한 값, 나머지는 추정값 (표준 오차는 --json)",
    ),
    "line_why_P": (
        "AdamW ceiling at the first step: {P}, as in `quadform lr`",
        "첫 단계의 AdamW 상한: `quadform lr`과 같은 P ({P})",
    ),
    "line_why_P_state": (
        "AdamW ceiling at the first step: of `full` with P from the optimizer state at step {step}, as in"
        " `quadform lr`; of the others, which have no state, with P of Adam on these batches, the weights held",
        "첫 단계의 AdamW 상한에 쓴 P: `full`은 옵티마이저 상태({step}단계), `quadform lr`과 같음; 상태가 없는 나머지는"
        " 가중치를 고정하고 이 배치들을 본 Adam의 P",
    ),
    "line_why_step": (
        "step {step}, trained again from step {begun}; {rule}, {coverage}",
        "{begun}단계부터 다시 학습한 {step}단계; {rule}, {coverage}",
    ),
    "line_why_between": (
        "step {step}, by the checkpoints at {begun} and {until}; {rule}, {coverage}",
        "{begun}단계와 {until}단계의 체크포인트로 본 {step}단계; {rule}, {coverage}",
    ),
    "line_compare": (
        "{count} models of width {width}, {heads} heads, {dtype}; {about}",
        "모델 {count}개, 폭 {width}, 헤드 {heads}개, {dtype}; {about}",
    ),
    "line_compare_tags": (
        "parameters, FLOPs and memory exact; speed and loss depend on this machine; the rest estimates",
        "파라미터, 연산량, 메모리는 정확한 값; 속도와 손실은 이 컴퓨터에 따라 다름; 나머지는 추정값",
    ),
    # attention
    "line_exact": (
        "exact Hessian, {count} parameters, {time} per Hessian, autodiff differs by {error}",
        "정확한 헤시안, 파라미터 {count}개, 하나에 {time}, 자동 미분과의 차이 {error}",
    ),
    "line_growth": (
        "growth of each block's norm with the input scale (fitted {low}-{high}; paper's exponents in brackets)",
        "입력 크기에 따른 블록 노름의 증가 ({low}-{high} 구간에서 맞춘 지수; 괄호 안은 논문의 지수)",
    ),
    "line_scale": (
        "scale {scale}: lambda_max {high}, lambda_min {low}, {share} % of eigenvalues negative",
        "크기 {scale}: lambda_max {high}, lambda_min {low}, 음의 고유값 {share} %",
    ),
    "line_no_overshoot": (
        "gradient descent: no direction has positive curvature here, so no step overshoots",
        "경사 하강법: 여기에는 곡률이 양인 방향이 없어 어떤 학습률도 최저점을 지나치지 않습니다",
    ),
    "line_overshoot": (
        "gradient descent: steps above 2 / lambda_max = {ceiling} overshoot (a ceiling, not a recommendation)",
        "경사 하강법: 학습률이 2 / lambda_max = {ceiling} 보다 크면 지나칩니다 (상한이며 권장값이 아님)",
    ),
    "line_far": (
        "scale {scale}: {state}: {first} curvature {query}, {last} curvature {value} (block norms)",
        "크기 {scale}: {state}: {first} 곡률 {query}, {last} 곡률 {value} (블록 노름)",
    ),
    "line_no_softmax": ("no softmax, nothing saturates", "소프트맥스가 없어 포화가 없음"),
    "line_one_hot": ("attention is one-hot (entropy {entropy})", "어텐션이 원-핫임 (엔트로피 {entropy})"),
    "line_not_one_hot": ("attention is not one-hot (entropy {entropy})", "어텐션이 원-핫이 아님 (엔트로피 {entropy})"),
    "line_widest": (
        "attention is one-hot (entropy {entropy}; the widest query spreads {spread})",
        "어텐션이 원-핫임 (엔트로피 {entropy}; 가장 퍼진 쿼리 {spread})",
    ),
    "line_widest_not": (
        "attention is not one-hot (entropy {entropy}; the widest query spreads {spread})",
        "어텐션이 원-핫이 아님 (엔트로피 {entropy}; 가장 퍼진 쿼리 {spread})",
    ),
    "line_kronecker": (
        "relative error of Kronecker preconditioners, |K - H_o(W, W)| / |H_o(W, W)| (nearest: the best possible)",
        "크로네커 전처리기의 상대 오차, |K - H_o(W, W)| / |H_o(W, W)| (nearest: 가능한 최선)",
    ),
    # verify, doctor
    "line_verify": (
        "{count} random layers (softmax, causal, linear, single W_QK; every size from 1 to {largest}),"
        " errors relative to max|H|",
        "무작위 층 {count}개 (소프트맥스, 인과 마스크, 선형, 단일 W_QK; 크기는 1부터 {largest}까지),"
        " 오차는 max|H| 기준",
    ),
    "line_verified": ("all {count} checks hold.", "검사 {count}개가 모두 맞습니다."),
    "line_failed": (
        "{count} of {all} checks FAILED: do not trust results on this machine.",
        "검사 {all}개 중 {count}개가 실패했습니다. 이 컴퓨터의 결과를 믿지 마십시오.",
    ),
    "line_verify_partial": (
        "PARTIAL: the time was up after {count} of {all} layers",
        "일부만 측정: 층 {all}개 중 {count}개에서 시간이 끝났습니다",
    ),
    "line_ready": ("ready; next: {next}.", "준비되었습니다. 다음 명령: {next}."),
    "line_not_ready": ("not ready: {names} missing.", "준비되지 않았습니다. 없는 것: {names}."),
    # train, reproduce, lists
    "line_trained": (
        "{model}, {count} parameters: {steps} steps in {time}",
        "{model}, 파라미터 {count}개: {steps}단계, {time}",
    ),
    "line_stopped_patience": ("no better validation", "검증 손실이 더 좋아지지 않음"),
    "line_stopped_goal": ("goal reached", "목표 달성"),
    "line_stopped_time": ("time is up", "시간이 끝남"),
    "line_train_loss": ("training loss {loss} at the last step", "마지막 단계의 학습 손실 {loss}"),
    "line_warning": ("warning: {text}", "경고: {text}"),
    "line_score": (
        "{experiments} experiments, {claims} claims: {score}",
        "실험 {experiments}개, 주장 {claims}개: {score}",
    ),
    "line_page": ("the page of all of it: {path}", "전체 결과 페이지: {path}"),
    "line_again": (
        "PARTIAL: the time was up; the same command resumes",
        "일부만 실행: 시간이 끝났습니다. 같은 명령으로 이어집니다",
    ),
    "line_designs": (
        "parameters of a decoder with {depth} blocks of width {d_model}, {heads} heads and {vocab} tokens. The formula"
        " is that of the last block; N is its norm, A the attention matrix, C the uniform one, B and D a fixed bias and"
        " row scale. Learned: alpha, beta, gamma (one a head), s (skip), b (branch).",
        "파라미터 수는 블록 {depth}개, 폭 {d_model}, 헤드 {heads}개, 어휘 {vocab}개인 디코더의 것입니다. 식은"
        " 마지막 블록의 것입니다. `N`: 정규화, `A`: 어텐션 행렬, `C`: 균등한 어텐션, `B`와 `D`: 고정된 편향과 행 배율."
        " 학습하는 값: `alpha`, `beta`, `gamma` (헤드마다 하나), `s` (잔차 연결), `b` (가지).",
    ),
    "line_data_sets": (
        "`--data NAME`, with settings `--data add:digits=3`; what is to fetch: `quadform data fetch NAME`",
        "사용: `--data NAME`, 설정과 함께: `--data add:digits=3`, 내려받기: `quadform data fetch NAME`",
    ),
    "line_catalogue": (
        "kept in {folder} (QUADFORM_DATA); get one: `quadform data fetch tsmsg-de`\n"
        "more without an entry: `ddtp-LANGUAGE` (any of Debian's), `pypi-PACKAGE==VERSION` (Python source of a wheel)",
        "저장 폴더: {folder} (`QUADFORM_DATA`); 내려받기: `quadform data fetch tsmsg-de`\n"
        "목록에 없는 것: `ddtp-LANGUAGE` (데비안의 모든 언어), `pypi-PACKAGE==VERSION` (휠에 든 파이썬 소스)",
    ),
    "line_experiments": (
        "`quadform reproduce NAME` runs it again; of the last record: cost (processor time; GPU: clock), verdict",
        "다시 실행: `quadform reproduce NAME`. 비용(프로세서 시간, GPU는 실제 시간)과 판정은 마지막 기록의 것입니다",
    ),
    "line_runs": (
        "{count} runs in {folder}; `quadform report RUN` draws one, several side by side",
        "{folder} 폴더의 실행 {count}개; `quadform report RUN`: 하나를 그리거나 여러 개를 나란히 비교",
    ),
    "line_use": ("use it: {how}", "사용법: {how}"),
    "line_fetched": (
        "{name}: {counted}; licence {licence}; checksums verified; {folder}",
        "{name}: {counted}; 라이선스 {licence}; 체크섬 확인함; {folder}",
    ),
}
