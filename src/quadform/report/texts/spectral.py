"""Sentences about spectra of whole models, in both languages."""

EN = {
    "record_spectrum": "Spectrum of {name}",
    "density_title": "The density of all eigenvalues",
    "density_head": "{share} of the curvature bends down; the largest of the {count} eigenvalues stands {ratio} times"
    " above the typical size of one.",
    "density_reading": "The area over a stretch of the axis is the share of eigenvalues there; the band is one standard"
    " error. Ticks are single extreme eigenvalues. Left of 0 the loss curves down. How far the ticks stand from the"
    " mass is how much sharper a few directions are than all others.",
    "density_not": "Narrow peaks are smoothed to the width of one step of the method; two eigenvalues closer than that"
    " appear as one peak. A tall peak at 0 does not mean that the loss is flat: it means that most directions are.",
    "density_caption": "The axis is linear up to {linear}, logarithmic beyond.",
    "density_axis": "share per unit of the axis",
    "density_band": "density",
    "map_title": "Block map: curvature of every matrix",
    "map_head": "{sharp} is the sharpest block, {flat} the flattest: {ratio} to 1.",
    "map_reading": "Each field is one matrix of one layer; number and colour are the typical size of an eigenvalue of"
    " its own block of the Hessian (norm over the root of the number of weights; norms are in the table). One colour"
    " everywhere: one step size fits. Stripes: it does not, and optimizers that scale each matrix by itself gain.",
    "map_not": "A pale block is not an unimportant one; it is one where larger steps are safe. Blocks say nothing about"
    " how the loss curves between two matrices: that is the next figure.",
    "map_scale": "Colours run logarithmically from {low} (palest) to {high} (darkest).",
    "map_part": "matrix",
    "map_layer": "layer",
    "map_size": "typical eigenvalue",
    "where_title": "Where the sharpest directions lie",
    "where_head": "{share} of {name}'s direction lies in {layer}.",
    "where_reading": "Each column is one eigenvector of the Hessian; a field is the share of its squared length in that"
    " layer, so a column adds up to 100 %. A dark field: this layer alone makes the curvature in that direction.",
    "where_not": "A share is not curvature: a layer with a small share in the sharpest direction may be sharp by"
    " itself. Eigenvectors of nearly equal eigenvalues may mix.",
    "where_share": "share",
    "where_vector": "eigenvector",
    "where_heads_title": "The sharpest direction by attention head",
    "where_heads_head": "The heads hold {total} of {name}'s direction; the largest part, {share}, is head {head} of"
    " {layer}.",
    "where_heads_reading": "Each row is one attention, each column one of its heads; a field is the share of the"
    " squared length of the first eigenvector in the query, key and value matrices of that"
    " head. The largest share is darkest, however small it is. A head with most of the direction sets the largest"
    " stable learning rate: look at its logits and norms first.",
    "where_head_column": "head",
    "where_tokens_title": "The sharpest direction by token",
    "where_tokens_head": "The token with the largest share of {name}'s direction is {token}: {share}.",
    "where_tokens_reading": "The rows of the embedding with the largest shares of the squared length of the first"
    " eigenvector; the number is that of the token. A large share means that one token of these batches sets the"
    " curvature: see whether it is padding, a separator or very frequent.",
    "where_tokens_not": "Tokens that the batches do not contain have share 0 unless the embedding is also the output"
    " matrix. Other batches may show others.",
    "where_token_column": "token",
    "pairs_title": "Norms of all pairs of blocks",
    "pairs_head": "{share} of the squared norm of these blocks lies off the diagonal.",
    "pairs_reading": "Row and column are matrices; the colour is the norm of the Hessian between them. Dark off the"
    " diagonal: moving one matrix changes the slope along the other, which optimizers that treat matrices by"
    " themselves do not see.",
    "pairs_not": "A norm has no sign: a strong pair may help or hinder. Errors are in the table.",
    "pairs_row": "row",
    "pairs_column": "column",
    "spectral_trace": "trace",
    "spectral_negative_share": "share of negative eigenvalues",
    "spectral_negative_curvature": "share of negative curvature (sum of |λ|)",
    "spectral_rms": "root mean square eigenvalue",
    "spectral_heterogeneity": "sharpest : flattest block (root mean square eigenvalue)",
    "spectral_loss": "loss",
    "spectral_cost": "cost",
    "spectral_cost_of": "{products} products, {seconds} s, {memory}, {route} route",
    "spectral_operator": "operator",
    "spectral_probe": "probe",
    "spectral_batches": "{count} batches",
}

KO = {
    "record_spectrum": "{name}의 스펙트럼",
    "density_title": "모든 고유값의 밀도",
    "density_head": "곡률 가운데 {share} 비율이 아래로 굽습니다. 고유값 {count}개 중 가장 큰 값은"
    " 보통 크기의 {ratio}배입니다.",
    "density_reading": "축의 한 구간 위 넓이가 그곳에 있는 고유값의 비율이고, 띠는 표준 오차 하나입니다. 눈금은 양 끝의"
    " 고유값 하나하나입니다. 0의 왼쪽에서는 손실이 아래로 굽습니다. 눈금이 덩어리에서 멀수록 몇몇 방향이 나머지보다"
    " 날카롭습니다.",
    "density_not": "좁은 봉우리는 방법의 한 걸음 너비로 뭉개집니다. 그보다 가까운 두 고유값은 하나의 봉우리입니다. 0의"
    " 높은 봉우리는 손실이 평평하다는 뜻이 아니라 대부분의 방향이 평평하다는 뜻입니다.",
    "density_caption": "축은 {linear} 안에서 선형이고 그 밖에서 로그입니다.",
    "density_axis": "축 단위당 비율",
    "density_band": "밀도",
    "map_title": "블록 지도: 행렬마다의 곡률",
    "map_head": "가장 날카로운 블록: {sharp}, 가장 평평한 블록: {flat}. 비율 {ratio} 대 1.",
    "map_reading": "칸 하나가 한 층의 행렬 하나입니다. 숫자와 색은 헤시안에서 그 블록 고유값의 보통 크기(노름을"
    " 가중치 수의 제곱근으로 나눈 값)이며, 노름은 표에 있습니다. 모두 한 색이면 하나의 학습률이 맞습니다. 줄무늬면 맞지"
    " 않고,"
    " 행렬마다 크기를 맞추는 최적화가 유리합니다.",
    "map_not": "옅은 블록은 중요하지 않은 것이 아니라 큰 스텝이 안전한 것입니다. 두 행렬 사이의 곡률은 여기 없고"
    " 다음 그림에 있습니다.",
    "map_scale": "색은 {low}(가장 옅음)에서 {high}(가장 진함)까지 로그로 변합니다.",
    "map_part": "행렬",
    "map_layer": "층",
    "map_size": "보통 고유값",
    "where_title": "가장 가파른 방향이 놓인 곳",
    "where_head": "{name} 방향의 {share}: {layer} 층에 있습니다.",
    "where_reading": "각 열은 헤시안의 고유벡터 하나이고, 칸은 그 제곱 길이 가운데 해당 층이 차지하는 비율입니다."
    " 한 열의 합은 100 %입니다. 칸이 진하면 그 방향의 곡률은 주로 그 층에서 나옵니다.",
    "where_not": "비율은 곡률이 아닙니다. 비율이 작은 층도 그 자체로는 가파를 수 있습니다. "
    "거의 같은 고유값의 고유벡터는 서로 섞일 수 있습니다.",
    "where_share": "비율",
    "where_vector": "고유벡터",
    "where_heads_title": "어텐션 헤드로 본 가장 가파른 방향",
    "where_heads_head": "{name} 방향 가운데 헤드의 몫은 모두 {total}, 가장 큰 것은 {layer} {head}번 헤드의"
    " {share}입니다.",
    "where_heads_reading": "각 행은 어텐션, 각 열은 그 헤드입니다. 칸은 첫 고유벡터의 제곱 길이 가운데 그 헤드의 쿼리,"
    " 키, 밸류 행렬이 차지하는 비율이며, 작더라도 가장 큰 비율이 가장 진합니다. 방향의 대부분이 한"
    " 헤드에 있으면 그 헤드가 안정한 최대 학습률을 정하므로 그 로짓과 노름부터 살펴보십시오.",
    "where_head_column": "헤드",
    "where_tokens_title": "토큰으로 본 가장 가파른 방향",
    "where_tokens_head": "{name} 방향의 몫이 가장 큰 토큰: {token}, {share}.",
    "where_tokens_reading": "첫 고유벡터의 제곱 길이에서 몫이 가장 큰 임베딩 행들이며, 숫자는 토큰 번호입니다. 몫이"
    " 크면 이 배치의 토큰 하나가 곡률을 정한다는 뜻입니다. 패딩이나 구분자, 아주 잦은 토큰인지 확인하십시오.",
    "where_tokens_not": "임베딩이 출력 행렬을 겸하지 않으면 배치에 없는 토큰의 몫은 0입니다. 다른 배치에서는 다른"
    " 토큰이 나올 수 있습니다.",
    "where_token_column": "토큰",
    "pairs_title": "모든 블록 쌍의 노름",
    "pairs_head": "이 블록들의 제곱 노름 가운데 {share} 비율이 대각선 밖에 있습니다.",
    "pairs_reading": "행과 열은 행렬이고 색은 그 사이 헤시안의 노름입니다. 대각선 밖이 진하면 한 행렬을 움직일 때"
    " 다른 행렬의 기울기가 바뀌는데, 행렬을 따로 다루는 최적화는 이것을 보지 못합니다.",
    "pairs_not": "노름에는 부호가 없습니다. 강한 쌍은 도움일 수도 방해일 수도 있습니다. 오차는 표에 있습니다.",
    "pairs_row": "행",
    "pairs_column": "열",
    "spectral_trace": "대각합",
    "spectral_negative_share": "음수 고유값의 비율",
    "spectral_negative_curvature": "음의 곡률의 비율 (|λ|의 합)",
    "spectral_rms": "고유값의 제곱평균제곱근",
    "spectral_heterogeneity": "가장 날카로운 블록 : 가장 평평한 블록 (고유값의 제곱평균제곱근)",
    "spectral_loss": "손실",
    "spectral_cost": "비용",
    "spectral_cost_of": "곱 {products}번, {seconds}초, {memory}, 방식 {route}",
    "spectral_operator": "연산자",
    "spectral_probe": "측정 배치",
    "spectral_batches": "배치 {count}개",
}
