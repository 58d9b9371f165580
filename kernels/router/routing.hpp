#pragma once
/// What a router decides, and how: shared by the reference and the kernels.
///
/// With logits l [t, e] and selection bias b [e] (not trained by gradient):
///     s = sigmoid(l), softmax(l) or sqrt(softplus(l))
///     groups (if limited): the `kept_groups` groups with the largest sum of their two best s + b stay (the largest best
///     alone without `pair_ranks`)
///     chosen: the k largest s + b, ties to the lower expert, listed best first
///     w_j = scale * s_j (/ sum of the chosen s, if normalised)
/// Source: DeepSeek-V3 (arXiv 2412.19437) sections 2.1.2; softmax then normalise is also gpt-oss's softmax over the
/// chosen logits. One best: DeepSeek-V2 (arXiv 2405.04434). sqrt(softplus): DeepSeek-V4.

namespace moeplan::kernels::router {

enum class Score : int { sigmoid, softmax, sqrt_softplus };

struct Dims {
    int tokens = 0;
    int experts = 0;      ///< 1 to 1024
    int top_k = 0;        ///< 1 to 32, at most the experts of the kept groups
    int groups = 1;       ///< divides experts; 1: not limited
    int kept_groups = 1;
    Score score = Score::sigmoid;
    bool normalise = true;
    float scale = 1.0f;
    /// Weight of the load-balancing loss  a * experts * sum_e f_e P_e, where f_e is the share of the t k choices that
    /// went to e and P_e the mean over tokens of s_e / sum_f s_f. Source: Switch Transformers, eq. 4 to 6.
    float auxiliary = 0.0f;
    bool pair_ranks = true; ///< a group's rank is the sum of its two best
    bool operator==(const Dims&) const = default;
};

} // namespace moeplan::kernels::router
