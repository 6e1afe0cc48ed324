// Every published recipe as a row: the stages it is made of, the numbers of its source, and where
// known implementations differ (docs/recipes.md has a section for each). Notation of the formulas:
// x a token, z logits, N tokens, E experts, K chosen, S tokens of a sequence, C capacity, cf
// capacity factor, c_e pairs sent to expert e, f and P as in moe/losses/aux_loss.h.
#include "moe/recipes/recipe_table.h"

namespace moe {
namespace {

using Rounding = BufferCapacity::Rounding;
using Order = BufferCapacity::Order;
using Renormalise = ChosenScores::Renormalise;
using Counts = BalanceLoss::Counts;
using Probs = BalanceLoss::Probs;
using Shares = BalanceLoss::Shares;

constexpr std::string_view kChoiceMajorLeaks =
    "training is not causal: a later token's first choice can evict an earlier token's second one; "
    "evaluated without drops it is causal";
constexpr std::string_view kCapacityLeaks =
    "training is not causal across rows of a batch, which share the buffers; evaluated without "
    "drops it is causal";
constexpr std::string_view kExpertsChoose =
    "training is not causal: whether an expert takes a token depends on later tokens; evaluated by "
    "the thresholds learned in training it is causal";
constexpr std::string_view kTokenSoftmaxLeaks =
    "not causal in training or evaluation: whether an expert takes a token, and its weight, depend "
    "on later tokens, and thresholds cannot replace a "
    "softmax over tokens";

constexpr Scope kSequence = {Scope::Kind::sequence, 0};

// Mesh TensorFlow's: C = max(4, min(S, floor(cf S / E))), without the number of choices.
BufferCapacity mesh(float factor, Order order, Scope scope) {
  return {.factor = factor,
          .count_choices = false,
          .rounding = Rounding::floor,
          .minimum = 4,
          .at_most_tokens = true,
          .order = order,
          .scope = scope,
          .skipped_take_room = false};
}

BufferCapacity nanomoe_capacity(float factor) {
  return {.factor = factor,
          .count_choices = true,
          .rounding = Rounding::floor_to_even,
          .minimum = 4,
          .at_most_tokens = false,
          .order = Order::choice_major,
          .scope = {},
          .skipped_take_room = false};
}

AuxLosses only(BalanceLoss balance) {
  AuxLosses losses;
  losses.balance = balance;
  return losses;
}

BalanceLoss balance(Counts counts, Probs probs, Scope scope = {}, Shares shares = Shares::own) {
  return {counts, probs, scope, shares};
}

RoutingLosses coefficients(float balance, float z = 0) {
  RoutingLosses coef;
  coef.balance = balance;
  coef.z = z;
  return coef;
}

Recipe dense() {
  Recipe r;
  r.name = "dense";
  r.title = "no routing: every token goes through one feed-forward network";
  r.source = "Vaswani et al. 2017, arXiv 1706.03762";
  r.formula = "y = FFN(x)";
  r.top_k_is_fixed = true;
  return r;
}

Recipe shazeer() {
  Recipe r;
  r.name = "shazeer";
  r.title = "noisy top-k, softmax over the chosen, importance and load losses";
  r.source =
      "Shazeer et al. 2017, arXiv 1701.06538, sections 2.1 and 4, appendix A; github "
      "tensorflow/tensor2tensor, utils/expert_utils.py";
  r.formula =
      "z = Wg x + sigma n, sigma = softplus(Wn x) + 0.01, n ~ N(0,1);  K = top-k(z);  w = "
      "softmax(z[K]);  importance loss CV^2(sum over tokens of w_e), "
      "load loss CV^2(sum over tokens of Phi(((Wg x)_e - t_e) / sigma_e)), t_e the k-th largest z "
      "without e's";
  r.differs =
      "The 0.01 under sigma is in tensor2tensor's code, not in the paper. Copies that compare the "
      "noise alone with the threshold (LLaMA-MoE), or take the "
      "unbiased variance in CV^2, compute another loss.";
  r.default_experts = 16;
  r.default_top_k = 2;
  r.zero_init = true;
  r.losses.coef.importance = r.losses.coef.load = 0.1f;
  r.losses.sum_over_layers = true;
  r.train.noise = LearnedNoise{.floor = 1e-2f};
  r.train.score = RawScore{};
  r.train.weigh = ChosenSoftmax{};
  r.train.losses.importance = r.train.losses.load = true;
  return r;
}

// GShard, GLaM and ST-MoE: two experts, their probabilities normalised before anything is dropped,
// buffers of one sequence.
Recipe top_two(float factor, SecondStage second) {
  Recipe r;
  r.causality = kChoiceMajorLeaks;
  r.default_top_k = 2;
  r.top_k_is_fixed = true;
  r.losses = {.coef = coefficients(0.01f), .uniform_is_k = false, .sum_over_layers = true};
  r.train.weigh = ChosenScores{.renormalise = Renormalise::before_drop, .scale = 1};
  r.train.second = second;
  r.train.capacity = mesh(factor, Order::choice_major, kSequence);
  r.train.losses = only(balance(Counts::first_choice, Probs::scores, kSequence));
  r.eval_as_trained = mesh(2, Order::choice_major, kSequence);
  return r;
}

Recipe gshard() {
  Recipe r = top_two(2, RandomSecond{.full = 0.5f});
  r.name = "gshard";
  r.title = "top-2 with a random second expert, capacity per group";
  r.source =
      "Lepikhin et al. 2020, arXiv 2006.16668, section 2.2 and algorithm 1; github "
      "tensorflow/mesh, mesh_tensorflow/transformer/moe.py";
  r.formula =
      "p = softmax(Wg x);  K = top-2(p);  w = p[K] / sum p[K];  the second is sent with "
      "probability min(1, 2 w2);  C = max(4, min(S, floor(2 S / E))) in "
      "each sequence, first choices before second";
  r.differs =
      "The paper's pseudo-code lets skipped and overflowing choices take room (skipped_take_room); "
      "Mesh TensorFlow frees it, and its random policy keeps "
      "the second with probability w2 / 0.2, in evaluation too. DeepSpeed renormalises after the "
      "drop and perturbs the second choice by Gumbel noise.";
  r.default_experts = 128;
  return r;
}

Recipe switch_transformer() {
  Recipe r;
  r.name = "switch";
  r.title = "top-1 with the raw probability, capacity, input jitter";
  r.source =
      "Fedus et al. 2021, arXiv 2101.03961, section 2.2; github tensorflow/mesh, "
      "mesh_tensorflow/transformer/moe.py";
  r.formula =
      "x' = x u, u ~ U[0.99, 1.01];  p = softmax(Wg x');  e = argmax p;  w = p[e];  C = max(4, "
      "min(N, floor(cf N / E))), in token order";
  r.causality = kCapacityLeaks;
  r.differs =
      "flaxformer rounds the capacity where Mesh TensorFlow cuts it off; DeepSpeed's top-1 drops "
      "random tokens instead of late ones and rounds up. "
      "transformers' Switch has no capacity formula of its own but a fixed number of tokens.";
  r.default_experts = 8;
  r.default_top_k = 1;
  r.top_k_is_fixed = true;
  r.losses = {.coef = coefficients(0.01f), .uniform_is_k = false, .sum_over_layers = true};
  r.train.noise = InputJitter{.eps = 1e-2f};
  r.train.weigh = ChosenScores{.renormalise = Renormalise::never, .scale = 1};
  r.train.capacity = mesh(1.25f, Order::token_major, {});
  r.train.losses = only(balance(Counts::first_choice, Probs::scores));
  r.eval_as_trained = mesh(2, Order::token_major, {});
  return r;
}

Recipe glam() {
  Recipe r = top_two(2, KeepSecond{});
  r.name = "glam";
  r.title = "GShard's top-2 with every second expert taken";
  r.source =
      "Du et al. 2021, arXiv 2112.06905; capacity factor as quoted in ST-MoE, arXiv 2202.08906, "
      "section 5";
  r.formula =
      "p = softmax(Wg x);  K = top-2(p);  w = p[K] / sum p[K];  C = max(4, min(S, floor(cf S / "
      "E))) in each sequence, first choices before second";
  r.differs = "No code was published; rounding, minimum and groups are Mesh TensorFlow's.";
  r.default_experts = 64;
  return r;
}

Recipe st_moe() {
  Recipe r = top_two(1.25f, ThresholdSecond{.least = 0.2f, .relative = false});
  r.name = "st-moe";
  r.title = "top-2 with a threshold for the second expert, router z-loss";
  r.source =
      "Zoph et al. 2022, arXiv 2202.08906, sections 3.4, 4.1 and 5, eq. 5-6; github "
      "tensorflow/mesh, mesh_tensorflow/transformer/moe.py";
  r.formula =
      "p = softmax(Wg x);  K = top-2(p);  w = p[K] / sum p[K];  the second is sent where w2 >= "
      "0.2;  C = max(4, min(S, floor(cf S / E))) in each sequence, "
      "first choices before second;  z-loss mean logsumexp(Wg x)^2";
  r.differs =
      "The text uses the second expert where its probability is at least 1/5 of the first's "
      "(relative), Mesh TensorFlow where its normalised weight is at "
      "least 0.2, that is 1/4 of the first's. A factor of 1.25 without the number of choices is "
      "0.625 places for each pair. Batch-prioritised order is an "
      "option.";
  r.default_experts = 64;
  r.losses.coef = coefficients(0.01f, 0.001f);
  return r;
}

Recipe expert_choice() {
  Recipe r;
  r.name = "expert-choice";
  r.title = "every expert takes the tokens that score highest for it";
  r.source =
      "Zhou et al. 2022, arXiv 2202.09368, section 3.2, eq. 1-4; github google/flaxformer, "
      "architectures/moe/routing.py";
  r.formula =
      "p = softmax over experts of Wg x;  each expert e takes the floor(N cf / E) tokens with the "
      "largest p[., e];  w = p";
  r.causality = kExpertsChoose;
  r.differs =
      "Mesh TensorFlow's takes the softmax over tokens instead, divides by the number of experts "
      "that took the token and adds a loss. Scored the way it "
      "trains, a decoder's perplexity is falsely low.";
  r.default_experts = 64;
  r.default_top_k = 2;
  r.train.select = ExpertChoice{.factor = 2, .scope = {}};
  r.train.weigh = ChosenScores{.renormalise = Renormalise::never, .scale = 1};
  return r;
}

Recipe expert_choice_notes() {
  Recipe r = expert_choice();
  r.name = "expert-choice-notes";
  r.title = "every expert takes its highest logits, softmax over the tokens it took";
  r.source =
      "the variant of some lecture notes on Zhou et al. 2022, arXiv 2202.09368, whose equation "
      "softmaxes over the selected tokens";
  r.formula =
      "z = Wg x;  each expert e takes the floor(N cf / E) tokens with the largest z[., e];  w = "
      "softmax over those tokens of z[., e]";
  r.causality = kTokenSoftmaxLeaks;
  r.differs =
      "Zhou's softmax is over experts and comes before the choice. Here an expert's weights add up "
      "to 1, so each is about E / (N cf): outputs shrink as N "
      "grows.";
  r.train.score = RawScore{};
  r.train.weigh = TokenSoftmax{};
  return r;
}

Recipe nanomoe() {
  Recipe r;
  r.name = "nanomoe";
  r.title = "noisy top-k, softmax over the chosen, capacity per micro-batch";
  r.source = "github wolfecameron/nanoMoE, manager.py and model.py";
  r.formula =
      "z = Wg x + softplus(Wn x) n;  K = top-k(z);  w = softmax(z[K]);  C = max(4, even(floor(k cf "
      "N / E))), first choices before second; balance over the "
      "chosen probabilities";
  r.causality = kChoiceMajorLeaks;
  r.differs =
      "Its description says plain floor and top-k of the logits; its code makes C even, at least "
      "4, and chooses by the noisy logits, in evaluation too, "
      "where none are drawn here. Its P is masked to the chosen where Switch's is the whole "
      "softmax, so unchosen logits get nothing from the balance loss.";
  r.default_experts = 8;
  r.default_top_k = 2;
  r.losses = {.coef = coefficients(0.01f, 0.001f), .uniform_is_k = true, .sum_over_layers = true};
  r.train.noise = LearnedNoise{.floor = 0};
  r.train.score = RawScore{};
  r.train.weigh = ChosenSoftmax{};
  r.train.capacity = nanomoe_capacity(1.25f);
  r.train.losses = only(balance(Counts::all_choices, Probs::chosen_weights));
  r.eval_as_trained = nanomoe_capacity(2);
  return r;
}

Recipe deepseek_moe() {
  Recipe r;
  r.name = "deepseek-moe";
  r.title = "fine-grained experts and shared ones that are always on, not renormalised";
  r.source = "Dai et al. 2024, arXiv 2401.06066, sections 3.1-3.3 and 5.1";
  r.formula =
      "p = softmax(Wg x) over the routed experts;  K = top-k(p);  w = p[K];  y = sum w_i FFN_i(x) "
      "+ FFN_shared(x)";
  r.differs =
      "The weights add up to less than 1 and the shared experts count 1. The paper's 16B model has "
      "coefficient 0.001 and no device loss, its 2B validation "
      "0.01, 145B 0.003 with a device loss of 0.05.";
  r.default_experts = 64;
  r.default_top_k = 6;
  r.shared = {.experts = 2, .widths = 1, .gate = false};
  r.losses = {.coef = coefficients(0.001f), .uniform_is_k = false, .sum_over_layers = true};
  r.train.weigh = ChosenScores{.renormalise = Renormalise::never, .scale = 1};
  r.train.losses = only(balance(Counts::all_choices, Probs::scores));
  return r;
}

Recipe deepseek_v2() {
  Recipe r = deepseek_moe();
  r.name = "deepseek-v2";
  r.title = "experts from the best groups only, expert, device and communication losses";
  r.source =
      "DeepSeek-AI 2024, arXiv 2405.04434, section 2.2, eq. 20-31; github deepseek-ai/DeepSeek-V3, "
      "inference/model.py";
  r.formula =
      "p = softmax(Wg x);  a group's score is its largest p;  K = top-k(p) within the best groups; "
      " w = 16 p[K];  y = sum w_i FFN_i(x) + FFN_shared(x);  "
      "losses per sequence: sum f P over experts, over devices, and over devices with f'' = D / M "
      "share of tokens sent there";
  r.differs =
      "The scale of 16 belongs to 160 experts, 6 of them chosen; V2-Lite has no groups and a scale "
      "of 1. The original code renormalises or scales, never "
      "both; transformers' always scales and ignores norm_topk_prob. The paper also drops tokens "
      "per device in training, which is not done here.";
  r.default_experts = 160;
  r.losses.coef = coefficients(0.003f);
  r.losses.coef.device = 0.05f;
  r.losses.coef.communication = 0.02f;
  r.train.select =
      GroupedTopK{.k = 6, .groups = 8, .keep = 3, .group_top = 1, .bias = std::nullopt};
  r.train.weigh = ChosenScores{.renormalise = Renormalise::never, .scale = 16};
  r.train.losses = only(balance(Counts::all_choices, Probs::scores, kSequence));
  r.train.losses.device = DeviceLoss{.devices = 8, .at_most = 3, .scope = kSequence};
  r.train.losses.communication = DeviceLoss{.devices = 8, .at_most = 3, .scope = kSequence};
  return r;
}

Recipe deepseek_v3() {
  Recipe r;
  r.name = "deepseek-v3";
  r.title = "sigmoid scores, a selection bias in place of a large loss, groups";
  r.source =
      "DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2, eq. 12-20; Wang et al. 2024, arXiv "
      "2408.15664; github deepseek-ai/DeepSeek-V3, inference/model.py";
  r.formula =
      "s = sigmoid(Wg x);  a group's score is the sum of its two largest s + b;  K = top-k(s + b) "
      "within the best groups;  w = 2.5 s[K] / sum s[K];  after "
      "each step b_e += 0.001 sign(mean(c) - c_e);  y = sum w_i FFN_i(x) + FFN_shared(x)";
  r.differs =
      "Other groups count as -inf here and in the original code; transformers masks them with 0, "
      "which wins over a negative s + b. The original sets the "
      "rate to 0 for the last 0.5T tokens; torchtitan keeps b centred, which changes no choice "
      "without groups.";
  r.default_experts = 256;
  r.default_top_k = 8;
  r.shared = {.experts = 1, .widths = 1, .gate = false};
  r.losses = {.coef = coefficients(1e-4f), .uniform_is_k = false, .sum_over_layers = true};
  r.train.score = SigmoidScore{};
  r.train.select = GroupedTopK{
      .k = 8, .groups = 8, .keep = 4, .group_top = 2, .bias = SelectionBias{.rate = 1e-3f}};
  r.train.weigh = ChosenScores{.renormalise = Renormalise::before_drop, .scale = 2.5f};
  r.train.losses = only(balance(Counts::unbiased_choices, Probs::normalised_scores, kSequence));
  return r;
}

Recipe deepseek_v4() {
  Recipe r;
  r.name = "deepseek-v4";
  r.title = "the square root of softplus as score, a selection bias, no groups";
  r.source =
      "DeepSeek-AI 2026, arXiv 2606.19348, section 2.1; github huggingface/transformers, "
      "models/deepseek_v4";
  r.formula =
      "s = sqrt(log(1 + e^(Wg x)));  K = top-k(s + b);  w = 1.5 s[K] / sum s[K];  after each step "
      "b_e += 0.001 sign(mean(c) - c_e);  y = sum w_i FFN_i(x) + FFN_shared(x)";
  r.differs =
      "The first three layers of the published models choose by a fixed table of token ids and "
      "weigh by these scores; models that have such tables keep them, in a new one every layer "
      "chooses by its scores. The larger model scales by "
      "2.5. The rate of b and the coefficient of the loss are V3's, and the published experts' "
      "clamped SwiGLU is an option of the model, not of the routing.";
  r.default_experts = 256;
  r.default_top_k = 6;
  r.shared = {.experts = 1, .widths = 1, .gate = false};
  r.losses = {.coef = coefficients(1e-4f), .uniform_is_k = false, .sum_over_layers = true};
  r.train.score = SqrtSoftplusScore{};
  r.train.select = TopK{.k = 6, .bias = SelectionBias{.rate = 1e-3f}};
  r.train.weigh = ChosenScores{.renormalise = Renormalise::before_drop, .scale = 1.5f};
  r.train.losses = only(balance(Counts::unbiased_choices, Probs::normalised_scores, kSequence));
  return r;
}

Recipe olmoe() {
  Recipe r;
  r.name = "olmoe";
  r.title = "dropless token choice, softmax over all experts, not renormalised";
  r.source =
      "Muennighoff et al. 2024, arXiv 2409.02060, eq. 1-3 and section 4.1; github "
      "huggingface/transformers, models/olmoe";
  r.formula = "p = softmax(Wg x);  K = top-k(p);  w = p[K]";
  r.differs =
      "It was trained with MegaBlocks' balance loss, 1 when balanced and a mean over layers; "
      "transformers' for the same model is K when balanced, over the "
      "tokens of all layers together.";
  r.default_experts = 64;
  r.default_top_k = 8;
  r.norm_topk_prob_is_open = true;
  r.losses = {.coef = coefficients(0.01f, 0.001f), .uniform_is_k = false, .sum_over_layers = false};
  r.train.weigh = ChosenScores{.renormalise = Renormalise::never, .scale = 1};
  r.train.losses = only(balance(Counts::all_choices, Probs::scores));
  return r;
}

Recipe mixtral() {
  Recipe r;
  r.name = "mixtral";
  r.title = "dropless token choice, weights renormalised over the chosen";
  r.source =
      "Jiang et al. 2024, arXiv 2401.04088, section 2.1; github huggingface/transformers, "
      "models/mixtral";
  r.formula =
      "p = softmax(Wg x);  K = top-k(p);  w = p[K] / sum p[K]  (= softmax of the chosen logits)";
  r.differs =
      "transformers adds the balance loss up over the tokens of all layers together, so that one "
      "layer can make up for another; here each layer has its "
      "own. Its optional jitter changes what the experts see; none is drawn here.";
  r.default_experts = 8;
  r.default_top_k = 2;
  r.losses = {.coef = coefficients(0.02f), .uniform_is_k = true, .sum_over_layers = false};
  r.train.weigh = ChosenScores{.renormalise = Renormalise::before_drop, .scale = 1};
  r.train.losses = only(balance(Counts::all_choices, Probs::scores));
  return r;
}

Recipe gpt_oss() {
  Recipe r = mixtral();
  r.name = "gpt-oss";
  r.title = "token choice by logits with a bias, weights a softmax of the chosen";
  r.source =
      "OpenAI 2025, arXiv 2508.10925, section 2.2; github huggingface/transformers, models/gpt_oss";
  r.formula = "z = Wg x + c;  K = top-k(z);  w = softmax(z[K])";
  r.differs =
      "transformers' balance loss adds the tokens of all layers up; here each layer has its own.";
  r.default_experts = 32;
  r.default_top_k = 4;
  r.losses = {.coef = coefficients(0.001f), .uniform_is_k = true, .sum_over_layers = false};
  r.train.logits = LinearLogits{.bias = true};
  return r;
}

Recipe gemma4() {
  Recipe r = mixtral();
  r.name = "gemma4";
  r.title = "weights renormalised over the chosen, times a learned factor of each expert";
  r.source = "Google 2026; github huggingface/transformers, models/gemma4, Gemma4TextRouter";
  r.formula = "p = softmax(Wg x);  K = top-k(p);  w = s[K] p[K] / sum p[K], s learned from 1 on";
  r.differs =
      "Nothing is public of how its router was trained; the balance loss is mixtral's. Its models "
      "give the router a norm of its own (moe inspect).";
  r.default_experts = 128;
  r.default_top_k = 8;
  r.losses = {.coef = coefficients(0.001f), .uniform_is_k = true, .sum_over_layers = false};
  r.train.weigh = ScaledScores{};
  return r;
}

Recipe sparsemixer() {
  Recipe r;
  r.name = "sparsemixer";
  r.title = "experts drawn one after the other among those near the best, SparseMixer-2's gradient";
  r.source =
      "Liu et al. 2024 (GRIN), arXiv 2409.12136, section 2.2; github huggingface/transformers, "
      "models/phimoe, sparsemixer";
  r.formula =
      "z = Wg x;  choice by choice, m the largest z left, near: (m - z_e) / max(|z_e|, m) <= 0.02; "
      " p = softmax of those near;  e ~ p, w = p_e, a third of it with probability 3/4 where e is "
      "not the best;  dw/dz as if w were p_e;  evaluated: the best one, w = p_e";
  r.differs =
      "The balance loss is Switch's over the whole softmax, one for each layer; transformers' adds "
      "the tokens of all layers up. Its jitter of the layer's input in training changes what the "
      "experts see too; none is drawn here. llama.cpp takes two experts and a softmax over them.";
  r.default_experts = 16;
  r.default_top_k = 2;
  r.losses = {.coef = coefficients(0.01f), .uniform_is_k = true, .sum_over_layers = false};
  r.train.score = RawScore{};
  r.train.select = NearBestChoice{};
  r.train.weigh = NearSoftmax{};
  r.train.losses = only(balance(Counts::all_choices, Probs::softmax));
  return r;
}

Recipe ernie_moe() {
  Recipe r = mixtral();
  r.name = "ernie-moe";
  r.title = "softmax scores and a selection bias, weights renormalised over the chosen";
  r.source =
      "Baidu 2025, ERNIE 4.5 Technical Report, section 2; github huggingface/transformers, "
      "models/ernie4_5_moe";
  r.formula =
      "p = softmax(Wg x);  K = top-k(p + b);  w = p[K] / sum p[K];  after each step "
      "b_e += 0.001 sign(mean(c) - c_e);  y = sum w_i FFN_i(x) + FFN_shared(x)";
  r.differs =
      "The report's loss that keeps the router's rows orthogonal, and its balancing of tokens over "
      "modalities, are not here. transformers' balance loss is K when balanced, adds the tokens of "
      "all layers up and does not move the bias.";
  r.default_experts = 64;
  r.default_top_k = 6;
  r.shared = {.experts = 2, .widths = 1, .gate = false};
  r.losses = {.coef = coefficients(0.001f), .uniform_is_k = true, .sum_over_layers = false};
  r.train.select = TopK{.bias = SelectionBias{.rate = 1e-3f}};
  r.train.losses = only(balance(Counts::unbiased_choices, Probs::scores));
  return r;
}

Recipe qwen2_moe() {
  Recipe r = olmoe();
  r.name = "qwen2-moe";
  r.title = "token choice beside a shared expert with a sigmoid gate, not renormalised";
  r.source =
      "Qwen team 2024, arXiv 2407.10671, section 2.2.2; github huggingface/transformers, "
      "models/qwen2_moe";
  r.formula =
      "p = softmax(Wg x);  K = top-k(p);  w = p[K];  y = sum w_i FFN_i(x) + sigmoid(ws x) "
      "FFN_shared(x)";
  r.differs =
      "The config's norm_topk_prob decides about renormalising; the published models have it "
      "false. The balance loss is transformers', K when balanced.";
  r.default_experts = 60;
  r.default_top_k = 4;
  r.shared = {.experts = 1, .widths = 4, .gate = true};
  r.losses = {.coef = coefficients(0.001f), .uniform_is_k = true, .sum_over_layers = false};
  return r;
}

Recipe qwen3_moe() {
  Recipe r = mixtral();
  r.name = "qwen3-moe";
  r.title = "token choice renormalised over the chosen, balance over the optimizer step so far";
  r.source =
      "Qwen team 2025, arXiv 2505.09388, section 2; Qiu et al. 2025, arXiv 2501.11873; github "
      "huggingface/transformers, models/qwen3_moe";
  r.formula =
      "p = softmax(Wg x);  K = top-k(p);  w = p[K] / sum p[K];  balance E sum f_e P_e with f over "
      "all micro-batches of the optimizer step so far";
  r.differs =
      "transformers' config class has norm_topk_prob false by default, the released configs true, "
      "and llama.cpp always renormalises. transformers' balance "
      "loss looks at one micro-batch; Megatron's global_aux_loss keeps the running counts that are "
      "meant.";
  r.default_experts = 128;
  r.default_top_k = 8;
  r.losses = {.coef = coefficients(0.001f), .uniform_is_k = true, .sum_over_layers = false};
  r.train.losses = only(balance(Counts::all_choices, Probs::scores, {}, Shares::running));
  return r;
}

Recipe hash() {
  Recipe r;
  r.name = "hash";
  r.title = "the expert is a fixed function of the token id; no router";
  r.source = "Roller et al. 2021, arXiv 2106.04426";
  r.formula = "K = H(token id), a random table;  w = 1";
  r.differs =
      "The paper also balances the table by the tokens' frequency and splits the network among "
      "several hashes, which is not done here; expert choice's "
      "baseline is id mod E (map \"modulo\").";
  r.default_experts = 16;
  r.default_top_k = 1;
  r.train.select = HashChoice{.k = 1, .map = HashChoice::Map::random, .seed = 0};
  r.train.weigh = UnitWeight{};
  return r;
}

// Experts cut out of a dense network: each starts with the weight that its neurons had there.
Recipe cut_out() {
  Recipe r;
  r.default_experts = 6;
  r.default_top_k = 3;
  r.train.select = TopK{.k = 3, .bias = SelectionBias{}};
  r.train.weigh = OnePlusScaled{};
  return r;
}

Recipe cmoe() {
  Recipe r = cut_out();
  r.name = "cmoe";
  r.title = "a dense network's neurons as experts, scored by what one neuron of each puts out";
  r.source =
      "Pei et al. 2025, arXiv 2502.04416, section 4, eq. 7-9; github JarvisPei/CMoE, CMoE_model.py";
  r.formula =
      "z_e = |silu(g_e . x) (u_e . x)|;  p = softmax(z);  K = top-k(p + b);  w = 1 + s p[K], s = 0 "
      "at first;  b_e += rate sign(mean(c) - c_e)";
  r.differs =
      "The paper's equation 8 has no absolute value, its code has. There the rows g and u are "
      "divided by their norms, x is not, and b is no part of the "
      "checkpoint.";
  r.train.logits = AnalyticLogits{};
  return r;
}

Recipe carved() {
  Recipe r = cut_out();
  r.name = "carved";
  r.title =
      "a dense network's neurons as experts, scored by a linear map fitted to what they put out";
  r.source =
      "moe carve (docs/carving.md); gates and bias as Pei et al. 2025, arXiv 2502.04416, eq. 9";
  r.formula =
      "z = Wg x + c;  p = softmax(z);  K = top-k(p + b);  w = 1 + s p[K], s = 0 at first;  b_e += "
      "rate sign(mean(c) - c_e)";
  r.train.logits = LinearLogits{.bias = true};
  return r;
}

Recipe sketch() {
  Recipe r;
  r.name = "sketch";
  r.title = "every neuron of a dense network an expert, scored by a copy of it in few bits";
  r.source = "moe carve --method sketch (docs/carving.md)";
  r.formula =
      "z_e = |act(g'_e . x) (u'_e . x)|, g' and u' few bits of g_e and |d_e| u_e;  K = top-k(z);  "
      "w = 1";
  r.differs =
      "Of published methods TEAL (arXiv 2408.14690) drops neurons by thresholds of what they hold, "
      "which it has to compute first, and Deja Vu (arXiv 2310.17157) trains predictors.";
  r.default_experts = 64;
  r.default_top_k = 32;
  r.train.logits = AnalyticLogits{.fixed = true};
  r.train.score = RawScore{};
  r.train.select = TopK{.k = 32, .bias = std::nullopt, .sorted = false};
  r.train.weigh = UnitWeight{};
  return r;
}

Recipe custom() {
  Recipe r;
  r.name = "custom";
  r.title = "stages from a JSON file";
  r.source = "the user's (docs/recipes.md, \"custom from JSON\")";
  r.formula = "noise -> logits -> score -> select -> weigh -> second -> capacity, as the file says";
  r.default_experts = 8;
  r.default_top_k = 2;
  return r;
}

}  // namespace

std::vector<Recipe> make_recipe_table() {
  return {dense(),       shazeer(),      gshard(),        switch_transformer(),
          glam(),        st_moe(),       expert_choice(), expert_choice_notes(),
          nanomoe(),     deepseek_moe(), deepseek_v2(),   deepseek_v3(),
          deepseek_v4(), olmoe(),        mixtral(),       gpt_oss(),
          gemma4(),      sparsemixer(),  ernie_moe(),     qwen2_moe(),
          qwen3_moe(),   hash(),         cmoe(),          carved(),
          sketch(),      custom()};
}

}  // namespace moe
