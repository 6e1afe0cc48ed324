// The whole product of stages: every combination is either refused with the reason and an
// alternative, or it routes and has a gradient.
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <unordered_set>

#include "core/error.h"
#include "moe/recipes/recipes.h"
#include "support/check.h"

namespace moe::test::validate_test {
namespace {

using Renormalise = ChosenScores::Renormalise;
using Counts = BalanceLoss::Counts;
using Probs = BalanceLoss::Probs;

constexpr int64_t kExperts = 6, kTokens = 16;
constexpr Scope kScopes[] = {
    {Scope::Kind::micro_batch, 0}, {Scope::Kind::sequence, 0}, {Scope::Kind::group, 6}};

// A member of a stage with one set of values for its enums, each of which has a part in the name:
// "scores, renormalise 1, scaled".
template <class Stage>
struct Member {
  std::string name;
  Stage stage;
};
template <class Stage>
using Members = std::vector<Member<Stage>>;

// A new member of a variant belongs into the lists below.
static_assert(std::variant_size_v<NoiseStage> == 3 && std::variant_size_v<ScoreStage> == 4 &&
              std::variant_size_v<SelectStage> == 6 && std::variant_size_v<LogitStage> == 2 &&
              std::variant_size_v<WeighStage> == 8 && std::variant_size_v<SecondStage> == 3 &&
              std::variant_size_v<CapacityStage> == 2);

Members<NoiseStage> all_noise() {
  return {{"no noise", NoNoise{}}, {"jitter", InputJitter{}}, {"learned", LearnedNoise{}}};
}
Members<ScoreStage> all_scores() {
  return {{"softmax score", SoftmaxScore{}},
          {"sigmoid", SigmoidScore{}},
          {"raw", RawScore{}},
          {"sqrt softplus", SqrtSoftplusScore{}}};
}
Members<SelectStage> all_selections() {
  Members<SelectStage> out;
  for (int64_t k : {1, 2, 3}) {
    const std::string top = fmt::format(", k {}", k);
    out.push_back({"top_k" + top, TopK{k, {}}});
    out.push_back({"top_k, bias" + top, TopK{k, SelectionBias{}}});
    out.push_back({"near_best" + top, NearBestChoice{k, 0.3f, false}});
    for (int64_t group_top : {1, 2}) {
      out.push_back({fmt::format("grouped, group_top {}", group_top) + top,
                     GroupedTopK{k, 3, 2, group_top, {}}});
      out.push_back({fmt::format("grouped, bias, group_top {}", group_top) + top,
                     GroupedTopK{k, 3, 2, group_top, SelectionBias{}}});
    }
    for (auto map : {HashChoice::Map::modulo, HashChoice::Map::random})
      out.push_back(
          {fmt::format("hash, map {}", static_cast<int>(map)) + top, HashChoice{k, map, 3}});
  }
  for (const Scope& scope : kScopes)
    out.push_back({fmt::format("expert_choice, choice scope {}", static_cast<int>(scope.kind)),
                   ExpertChoice{2, scope}});
  out.push_back({"threshold", ThresholdChoice{}});
  return out;
}
Members<WeighStage> all_weighings() {
  Members<WeighStage> out = {{"chosen softmax", ChosenSoftmax{}},
                             {"token_softmax", TokenSoftmax{}},
                             {"one", UnitWeight{}},
                             {"one plus scaled", OnePlusScaled{}},
                             {"scaled scores", ScaledScores{}},
                             {"near softmax", NearSoftmax{0.3f}},
                             {"sigmoids", ChosenSigmoids{false}},
                             {"sigmoids, divided", ChosenSigmoids{true}}};
  for (auto renormalise : {Renormalise::never, Renormalise::before_drop, Renormalise::after_drop})
    for (float scale : {1.0f, 2.5f})
      out.push_back(
          {fmt::format("scores, renormalise {}, scale {}", static_cast<int>(renormalise), scale),
           ChosenScores{renormalise, scale}});
  return out;
}
Members<SecondStage> all_seconds() {
  return {{"all seconds", KeepSecond{}},
          {"threshold second", ThresholdSecond{}},
          {"threshold second, relative", ThresholdSecond{0.2f, true}},
          {"random second", RandomSecond{}}};
}
Members<CapacityStage> all_capacities() {
  Members<CapacityStage> out = {{"dropless", Dropless{}}};
  using B = BufferCapacity;
  for (auto order : {B::Order::choice_major, B::Order::token_major, B::Order::by_weight,
                     B::Order::batch_priority, B::Order::random})
    for (auto rounding :
         {B::Rounding::floor, B::Rounding::floor_to_even, B::Rounding::round, B::Rounding::ceil})
      for (const Scope& scope : kScopes)
        for (bool skipped : {false, true})
          for (bool count : {false, true})
            for (bool at_most : {false, true}) {
              const auto number = [](auto e) { return static_cast<int>(e); };
              out.push_back({fmt::format("buffer, order {}, rounding {}, capacity scope {}, "
                                         "skipped {}, count {}, at_most {}",
                                         number(order), number(rounding), number(scope.kind),
                                         skipped, count, at_most),
                             B{1.5f, count, rounding, 1, at_most, order, scope, skipped}});
            }
  return out;
}
std::vector<BalanceLoss> all_balance_losses() {
  using B = BalanceLoss;
  std::vector<BalanceLoss> out;
  for (auto counts : {B::Counts::first_choice, B::Counts::all_choices, B::Counts::unbiased_choices})
    for (auto probs : {B::Probs::scores, B::Probs::chosen_weights, B::Probs::normalised_scores,
                       B::Probs::softmax})
      for (const Scope& scope : kScopes)
        for (auto shares : {B::Shares::own, B::Shares::running, B::Shares::step})
          out.push_back({counts, probs, scope, shares});
  return out;
}
std::string name_of(const AuxLosses& l) {
  std::string name;
  if (l.balance)
    name +=
        fmt::format(", balance, counts {}, probs {}, balance scope {}, shares {}",
                    static_cast<int>(l.balance->counts), static_cast<int>(l.balance->probs),
                    static_cast<int>(l.balance->scope.kind), static_cast<int>(l.balance->shares));
  if (l.device)
    name += fmt::format(", device, device scope {}", static_cast<int>(l.device->scope.kind));
  if (l.communication)
    name += fmt::format(", communication, communication scope {}",
                        static_cast<int>(l.communication->scope.kind));
  for (const auto& [on, what] : {std::pair{l.importance, ", importance"},
                                 {l.load, ", load"},
                                 {l.z_of_clean, ", z_of_clean"}})
    if (on) name += what;
  return name.empty() ? "none" : name.substr(2);
}
// No loss, every loss alone, and every set of kinds of losses.
Members<AuxLosses> all_losses() {
  std::vector<AuxLosses> list;
  for (const BalanceLoss& b : all_balance_losses()) list.emplace_back().balance = b;
  for (const Scope& scope : kScopes) {
    list.emplace_back().device = DeviceLoss{3, 1, scope};
    list.emplace_back().communication = DeviceLoss{3, 1, scope};
  }
  for (int set = 0; set < 64; ++set) {
    AuxLosses l;
    if (set & 1) l.balance = BalanceLoss{};
    if (set & 2) l.device = DeviceLoss{3, 1, {}};
    if (set & 4) l.communication = DeviceLoss{3, 1, {}};
    l.importance = set & 8, l.load = set & 16, l.z_of_clean = set & 32;
    list.push_back(l);
  }
  Members<AuxLosses> out;
  std::set<std::string> seen;
  for (const AuxLosses& l : list)
    if (seen.insert(name_of(l)).second) out.push_back({name_of(l), l});
  return out;
}

// The numbers a combination is run on: the same for all.
struct Numbers {
  moe::Run run{1};
  Router router;
  Tensor clean, noisy, sigma, dweights;
  std::vector<int32_t> ids;
  std::vector<int64_t> bounds = {0, 9, kTokens}, step_counts = {9, 2, 4, 7, 1, 6};
  Tensor thresholds[std::variant_size_v<ScoreStage>];  // by the score

  Numbers() {
    clean = draw(run.saved, DType::f32, {kTokens, kExperts}, 1);
    sigma = draw(run.saved, DType::f32, {kTokens, kExperts}, 2);
    noisy = draw(run.saved, DType::f32, {kTokens, kExperts}, 3);
    dweights = draw(run.saved, DType::f32, {kTokens * kExperts}, 4);
    for (int64_t i = 0; i < clean.numel(); ++i) {
      sigma.as<float>()[i] = 0.5f + std::abs(sigma.as<float>()[i]);
      noisy.as<float>()[i] = clean.as<float>()[i] + sigma.as<float>()[i] * noisy.as<float>()[i];
    }
    // with this one no score sends the groups of experts as many tokens as each other: then nothing
    // could lower the loss of communication
    router.bias.value = draw(run.saved, DType::f32, {kExperts}, 7, 0.1f);
    router.scale.value = draw(run.saved, DType::f32, {kExperts}, 6);
    for (size_t i = 0; i < std::size(thresholds); ++i) {
      thresholds[i] = run.saved.alloc(DType::f32, {kExperts});
      std::fill_n(thresholds[i].as<float>(), kExperts, std::array{0.15f, 0.5f, 0.0f, 0.8f}[i]);
    }
    for (int32_t n = 0; n < kTokens; ++n) ids.push_back(n * n % 11);
  }
};

bool all_finite(const Tensor& t) {
  for (int64_t i = 0; i < t.numel(); ++i)
    if (!std::isfinite(t.as<float>()[i])) return false;
  return true;
}
double largest(std::initializer_list<Tensor> tensors) {
  double most = 0;
  for (const Tensor& t : tensors)
    for (int64_t i = 0; !t.empty() && i < t.numel(); ++i)
      most = std::max(most, std::abs(static_cast<double>(t.as<float>()[i])));
  return most;
}

// Empty, or what is wrong with the routing of an accepted combination.
std::string run_once(Numbers& numbers, const RoutingSpec& spec) {
  moe::Run& run = numbers.run;
  const auto mark = run.saved.mark();
  struct Rewind {
    Arena& arena;
    Arena::Mark at;
    ~Rewind() { arena.rewind(at); }
  } rewind{run.saved, mark};
  Router::Saved saved;
  saved.key = RngKey::from_seed(5);
  const Pass pass{.batch = {.ids = numbers.ids, .bounds = numbers.bounds},
                  .routing = &spec,
                  .keep = Keep::all,
                  .step_counts = std::span(&numbers.step_counts, 1),
                  .wanted = Wanted::all()};
  if (needs_logits(spec.select)) saved.logits = numbers.clean;
  if (std::holds_alternative<LearnedNoise>(spec.noise)) {
    saved.logits = numbers.noisy;
    if (spec.losses.load || spec.losses.z_of_clean) saved.clean = numbers.clean;
    if (spec.losses.load) saved.sigma = numbers.sigma;
  }
  if (std::holds_alternative<ThresholdChoice>(spec.select))
    numbers.router.threshold.value = numbers.thresholds[spec.score.index()];
  const RoutingPlan plan = numbers.router.decide(run, pass, saved);
  if (plan.rows() == 0) return "no pair was kept";
  if (!all_finite(plan.weight)) return "a weight is not finite";
  std::string wrong;
  const RoutingLosses losses = losses_of(saved.losses.as<float>());
  each_loss(losses, [&](const char* name, float value) {
    if (!std::isfinite(value)) wrong = fmt::format("the {} loss is not finite", name);
  });
  if (!wrong.empty() || !needs_logits(spec.select)) return wrong;

  const auto like = [&](const Tensor& t) {
    return t.empty() ? Tensor{} : run.saved.alloc(DType::f32, {kTokens, kExperts});
  };
  Tensor dz = like(saved.logits), dclean = like(saved.clean), dsigma = like(saved.sigma);
  const auto gradient = [&](Tensor dweight, const RoutingLosses& coef, const std::string& of,
                            bool depends) {
    numbers.router.decide_backward(run, dz, dclean, dsigma, dweight, {}, plan, pass, coef, saved);
    for (const Tensor& t : {dz, dclean, dsigma})
      if (!t.empty() && !all_finite(t)) wrong = "the gradient of " + of + " is not finite";
    if ((largest({dz, dclean, dsigma}) > 1e-6) != depends)
      wrong = fmt::format("the logits get {} gradient from {}", depends ? "no" : "a", of);
  };
  // Divided by the sum over the kept, a token's only weight is 1; with few places that may be so
  // for all tokens.
  bool shared = !renormalises_after_drop(spec.weigh);
  for (size_t n = 0; n < kTokens; ++n) shared |= plan.bounds[n + 1] - plan.bounds[n] > 1;
  gradient(Tensor(numbers.dweights.data, DType::f32, {plan.rows()}), {}, "the weights", shared);
  const AuxLosses& l = spec.losses;
  const bool there[] = {l.balance.has_value(),       true,         l.device.has_value(),
                        l.communication.has_value(), l.importance, l.load};
  RoutingLosses coef;
  size_t i = 0;
  each_loss(coef, [&](const char* name, float& c) {
    if (!there[i++]) return;
    c = 1;
    gradient({}, coef, fmt::format("the {} loss", name), true);
    c = 0;
  });
  return wrong;
}

struct Account {
  int64_t accepted = 0, refused = 0;
  std::map<std::string, int64_t> parts;  // accepted combinations that have it
  std::unordered_set<std::string> messages;
  int shown = 0;

  // Whether validate accepts; if so it must run.
  bool check(Numbers& numbers, const RoutingSpec& spec, const std::function<std::string()>& name) {
    try {
      validate(spec);
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::usage)
        complain(name() + ": not a usage error: " + error.what());
      messages.insert(error.what());
      ++refused;
      return false;
    }
    ++accepted;
    try {
      if (const std::string wrong = run_once(numbers, spec); !wrong.empty())
        complain(name() + ": " + wrong);
    } catch (const Error& error) {
      complain(name() + ": accepted, but fails: " + error.what());
    }
    return true;
  }
  void count(const std::string& name, int64_t more) {
    for (size_t begin = 0; begin < name.size();) {
      const size_t end = std::min(name.find(", ", begin), name.size());
      parts[name.substr(begin, end - begin)] += more;
      begin = end + 2;
    }
  }
  void complain(const std::string& what) {
    if (shown++ < 20) ADD_FAILURE() << what;
  }
};

TEST(Validate, EveryCombinationIsRefusedWithAnAlternativeOrRoutes) {
  Numbers numbers;
  Account account;
  const auto noises = all_noise();
  const auto scores = all_scores();
  const auto selections = all_selections();
  const auto weighings = all_weighings();
  const auto seconds = all_seconds();
  const auto capacities = all_capacities();
  const auto losses = all_losses();
  const auto enter = [&](const auto&... lists) {
    (std::for_each(lists.begin(), lists.end(), [&](const auto& m) { account.count(m.name, 0); }),
     ...);
  };
  enter(noises, scores, selections, weighings, seconds, capacities, losses);

  RoutingSpec spec;
  spec.experts = kExperts;
  for (const auto& noise : noises)
    for (const auto& score : scores)
      for (const auto& select : selections)
        for (const auto& weigh : weighings)
          for (const auto& second : seconds) {
            spec.noise = noise.stage, spec.score = score.stage, spec.select = select.stage,
            spec.weigh = weigh.stage, spec.second = second.stage;
            const auto try_with = [&](const Member<CapacityStage>& capacity,
                                      const Member<AuxLosses>& loss) {
              spec.capacity = capacity.stage, spec.losses = loss.stage;
              const bool ok = account.check(numbers, spec, [&] {
                return fmt::format("{} / {} / {} / {} / {} / {} / {}", noise.name, score.name,
                                   select.name, weigh.name, second.name, capacity.name, loss.name);
              });
              if (!ok) return;
              for (const std::string& name : {noise.name, score.name, select.name, weigh.name,
                                              second.name, capacity.name, loss.name})
                account.count(name, 1);
            };
            const Member<AuxLosses> no_losses{"none", {}};
            for (const auto& capacity : capacities) try_with(capacity, no_losses);
            for (const auto& loss : losses) {
              try_with(capacities.front(), loss);
              try_with(capacities[1], loss);
            }
          }
  RecordProperty("accepted", std::to_string(account.accepted));
  RecordProperty("refused", std::to_string(account.refused));
  std::printf("%lld combinations accepted, %lld refused with %zu messages\n",
              static_cast<long long>(account.accepted), static_cast<long long>(account.refused),
              account.messages.size());
  EXPECT_GT(account.accepted, 0);
  EXPECT_GT(account.refused, 0);
  const std::regex alternative("\\b(use|take|give|lower|raise)\\b");
  for (const std::string& message : account.messages)
    EXPECT_TRUE(std::regex_search(message, alternative)) << message;
  for (const auto& [name, count] : account.parts)
    EXPECT_GT(count, 0) << name << " is in no accepted combination";
}

std::string refusal(const RoutingSpec& spec) {
  try {
    validate(spec);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    return error.what();
  }
  return "";
}

// A spec that is valid, changed in one number.
RoutingSpec grouped(int64_t experts, GroupedTopK select) {
  RoutingSpec spec;
  spec.experts = experts;
  spec.select = select;
  return spec;
}
RoutingSpec top_k(int64_t experts, int64_t k, const std::function<void(RoutingSpec&)>& change) {
  RoutingSpec spec;
  spec.experts = experts;
  spec.select = TopK{k, {}};
  change(spec);
  return spec;
}
void expect_refused(const RoutingSpec& spec, const std::string& reason) {
  const std::string message = refusal(spec);
  EXPECT_NE(message.find(reason), std::string::npos)
      << "wanted: " << reason << "\ngot: " << message;
}

TEST(Validate, ChecksEveryNumberOfTheSelection) {
  const auto same = [](RoutingSpec&) {};
  EXPECT_EQ(refusal(top_k(6, 2, same)), "");
  expect_refused(top_k(0, 1, same), "at least one expert");
  expect_refused(top_k(6, 0, same), "1 to 6");
  expect_refused(top_k(6, 7, same), "lower top_k");
  expect_refused(top_k(6, 2,
                       [](RoutingSpec& s) {
                         s.select = TopK{2, SelectionBias{-1e-3f}};
                       }),
                 "feed the overloaded");
  EXPECT_EQ(refusal(top_k(6, 2, [](RoutingSpec& s) { s.select = TopK{2, SelectionBias{0}}; })), "");

  EXPECT_EQ(refusal(grouped(12, {2, 4, 2, 2, {}})), "");
  expect_refused(grouped(12, {2, 5, 2, 1, {}}), "one of 1, 2, 3, 4, 6, 12");
  expect_refused(grouped(12, {2, 0, 1, 1, {}}), "one of 1, 2, 3, 4, 6, 12");
  expect_refused(grouped(12, {2, 4, 5, 1, {}}), "from 1 to 4");
  expect_refused(grouped(12, {2, 4, 0, 1, {}}), "from 1 to 4");
  expect_refused(grouped(12, {4, 4, 1, 1, {}}), "raise groups_kept");
  expect_refused(grouped(12, {2, 4, 2, 4, {}}), "from 1 to 3");
  expect_refused(grouped(12, {2, 4, 2, 0, {}}), "from 1 to 3");

  const auto choice = [&](float factor, Scope scope) {
    return top_k(6, 2, [&](RoutingSpec& s) { s.select = ExpertChoice{factor, scope}; });
  };
  EXPECT_EQ(refusal(choice(0.5f, {})), "");
  for (float factor : {0.f, -1.f, 7.f, NAN, INFINITY})
    expect_refused(choice(factor, {}), "give a factor above 0 and at most 6");
  expect_refused(choice(2, {Scope::Kind::group, 0}), "at least one token");
}

TEST(Validate, ChecksEveryNumberOfNoiseWeightsAndCapacity) {
  const auto with = [](const std::function<void(RoutingSpec&)>& change) {
    return top_k(6, 2, change);
  };
  for (float eps : {-0.1f, 1.f, NAN})
    expect_refused(with([&](RoutingSpec& s) { s.noise = InputJitter{eps}; }), "less than 1");
  EXPECT_EQ(refusal(with([](RoutingSpec& s) { s.noise = InputJitter{0}; })), "");
  for (float floor : {-0.1f, NAN, INFINITY})
    expect_refused(with([&](RoutingSpec& s) { s.noise = LearnedNoise{floor}; }),
                   "standard deviation");
  for (float scale : {0.f, -2.f, NAN, INFINITY})
    expect_refused(with([&](RoutingSpec& s) {
                     s.weigh = ChosenScores{Renormalise::never, scale};
                   }),
                   "finite scale above 0");
  for (float factor : {0.f, -1.f, NAN, INFINITY})
    expect_refused(with([&](RoutingSpec& s) { s.capacity = BufferCapacity{.factor = factor}; }),
                   "above 0");
  expect_refused(with([](RoutingSpec& s) { s.capacity = BufferCapacity{.minimum = -1}; }),
                 "0 or more");
  expect_refused(with([](RoutingSpec& s) {
                   s.capacity = BufferCapacity{.scope = {Scope::Kind::group, 0}};
                 }),
                 "at least one token");
  for (float full : {0.f, -1.f, 1.5f, NAN})
    expect_refused(with([&](RoutingSpec& s) { s.second = RandomSecond{full}; }),
                   "above 0 and at most 1");
  // No second weight of a softmax is above one half, a sigmoid's may be.
  for (float least : {-0.1f, 0.6f, NAN})
    expect_refused(with([&](RoutingSpec& s) {
                     s.second = ThresholdSecond{least, false};
                   }),
                   "from 0 to 0.5");
  EXPECT_EQ(refusal(with([](RoutingSpec& s) {
              s.second = ThresholdSecond{0.6f, false}, s.score = SigmoidScore{};
            })),
            "");
  EXPECT_EQ(refusal(with([](RoutingSpec& s) { s.second = ThresholdSecond{0.6f, true}; })), "");
  expect_refused(with([](RoutingSpec& s) {
                   s.second = ThresholdSecond{1.1f, true};
                 }),
                 "from 0 to 1");
}

TEST(Validate, ChecksEveryNumberOfTheLosses) {
  const auto devices = [](int64_t experts, int64_t k, DeviceLoss loss, bool communication) {
    return top_k(experts, k, [&](RoutingSpec& s) {
      (communication ? s.losses.communication : s.losses.device) = loss;
    });
  };
  for (bool communication : {false, true}) {
    EXPECT_EQ(refusal(devices(12, 2, {4, 2, {}}, communication)), "");
    for (int64_t count : {0, 1, 5})
      expect_refused(devices(12, 2, {count, 1, {}}, communication), "give one of 2, 3, 4, 6, 12");
    expect_refused(devices(1, 1, {1, 1, {}}, communication), "one expert cannot be spread");
    expect_refused(devices(12, 2, {4, 2, {Scope::Kind::group, -3}}, communication),
                   "at least one token");
  }
  for (int64_t at_most : {0, 3})
    expect_refused(devices(12, 2, {4, at_most, {}}, true), "from 1 to 2");
  EXPECT_EQ(refusal(devices(12, 2, {4, 9, {}}, false)), "");  // the device loss does not read it
  expect_refused(top_k(12, 2,
                       [](RoutingSpec& s) {
                         s.losses.balance = BalanceLoss{.scope = {Scope::Kind::group, 0}};
                       }),
                 "at least one token");
  // An expert that takes one token of a scope has nothing to share a softmax over tokens among.
  const auto by_tokens = [](int64_t group) {
    return top_k(6, 2, [&](RoutingSpec& s) {
      s.score = RawScore{}, s.weigh = TokenSoftmax{},
      s.select = ExpertChoice{2, {Scope::Kind::group, group}};
    });
  };
  expect_refused(by_tokens(5), "always 1");
  EXPECT_EQ(refusal(by_tokens(6)), "");
}

// Changes of a choice of 2 of 6 experts by softmax, and a word of why each is refused.
using Refusals = std::vector<std::pair<std::function<void(RoutingSpec&)>, std::string>>;
void expect_each_refused(const Refusals& table) {
  for (const auto& [change, reason] : table) expect_refused(top_k(6, 2, change), reason);
}

// These alone are not refused.
constexpr ChosenScores kRenormalised{Renormalise::before_drop, 1};
void raw(RoutingSpec& s) { s.score = RawScore{}, s.weigh = ChosenSoftmax{}; }
void expert_choice(RoutingSpec& s) { s.select = ExpertChoice{}; }
void hash(RoutingSpec& s) { s.select = HashChoice{}, s.weigh = UnitWeight{}; }

TEST(Validate, NamesTheReasonOfWeightsThatDoNotFit) {
  EXPECT_EQ(refusal(top_k(6, 2, raw)), "");
  expect_each_refused({
      {[](RoutingSpec& s) {
         s.select = TopK{1, {}}, s.weigh = kRenormalised;
       },
       "always 1"},
      {[](RoutingSpec& s) {
         raw(s), s.select = TopK{1, {}};
       },
       "always 1"},
      {[](RoutingSpec& s) { s.weigh = UnitWeight{}; }, "no gradient"},
      {[](RoutingSpec& s) { s.score = RawScore{}; }, "can be negative"},
      {[](RoutingSpec& s) { s.score = RawScore{}, s.weigh = ScaledScores{}; }, "can be negative"},
      {[](RoutingSpec& s) { s.weigh = ChosenSoftmax{}; }, "nearly flat"},
      {[](RoutingSpec& s) { s.score = RawScore{}, s.weigh = TokenSoftmax{}; },
       "experts that choose"},
      {[](RoutingSpec& s) { expert_choice(s), s.weigh = TokenSoftmax{}; }, "nearly flat"},
      {[](RoutingSpec& s) {
         s.score = RawScore{}, s.weigh = TokenSoftmax{}, s.select = ThresholdChoice{};
       },
       "later tokens"},
      {[](RoutingSpec& s) {
         s.weigh = ChosenScores{Renormalise::after_drop, 2};
       },
       "takes the scale of 2 away"},
  });
}

TEST(Validate, NamesTheReasonOfChoicesThatDoNotFit) {
  EXPECT_EQ(refusal(top_k(6, 2, expert_choice)) + refusal(top_k(6, 2, hash)), "");
  expect_each_refused({
      {[](RoutingSpec& s) {
         s.select = TopK{3, {}}, s.second = RandomSecond{};
       },
       "top-k 2, not 3"},
      {[](RoutingSpec& s) { expert_choice(s), s.second = RandomSecond{}; }, "no second choice"},
      {[](RoutingSpec& s) { expert_choice(s), s.capacity = BufferCapacity{}; },
       "nothing overflows"},
      {[](RoutingSpec& s) { expert_choice(s), s.losses.balance = BalanceLoss{}; },
       "even by construction"},
      {[](RoutingSpec& s) { s.select = ThresholdChoice{}, s.losses.importance = true; },
       "even by construction"},
      {[](RoutingSpec& s) { s.capacity = BufferCapacity{.skipped_take_room = true}; },
       "ever skipped"},
      {[](RoutingSpec& s) { hash(s), s.noise = InputJitter{}; }, "no logits"},
      {[](RoutingSpec& s) { hash(s), s.score = SigmoidScore{}; }, "no scores"},
      {[](RoutingSpec& s) { hash(s), s.weigh = kRenormalised; }, "no scores to weigh"},
      {[](RoutingSpec& s) { hash(s), s.select = HashChoice{.k = 2}, s.second = ThresholdSecond{}; },
       "no weight to be judged by"},
      {[](RoutingSpec& s) { hash(s), s.losses.balance = BalanceLoss{}; }, "no router"},
      {[](RoutingSpec& s) {
         hash(s), s.capacity = BufferCapacity{.order = BufferCapacity::Order::by_weight};
       },
       "goes before another"},
  });
}

TEST(Validate, NamesTheReasonOfLossesThatDoNotFit) {
  expect_each_refused({
      {[](RoutingSpec& s) { raw(s), s.losses.balance = BalanceLoss{}; },
       "raw scores do not add up to 1; use probs \"softmax\" or \"chosen_weights\""},
      {[](RoutingSpec& s) { s.score = SigmoidScore{}, s.losses.balance = BalanceLoss{}; },
       "use probs \"normalised_scores\""},
      {[](RoutingSpec& s) {
         raw(s), s.losses.balance = BalanceLoss{.probs = Probs::normalised_scores};
       },
       "not probabilities"},
      {[](RoutingSpec& s) { s.losses.balance = BalanceLoss{.probs = Probs::chosen_weights}; },
       "do not add up to 1"},
      {[](RoutingSpec& s) { s.losses.balance = BalanceLoss{.counts = Counts::unbiased_choices}; },
       "there is no bias"},
      {[](RoutingSpec& s) {
         s.losses.balance = BalanceLoss{.scope = kScopes[1], .shares = BalanceLoss::Shares::step};
       },
       "use the scope \"micro_batch\""},
      {[](RoutingSpec& s) { raw(s), s.losses.device = DeviceLoss{.devices = 3, .scope = {}}; },
       "which raw logits are not"},
      {[](RoutingSpec& s) { raw(s), s.losses.load = true; }, "needs noise of a learned scale"},
      {[](RoutingSpec& s) {
         s.noise = LearnedNoise{}, s.losses.load = true, s.select = TopK{2, SelectionBias{}};
       },
       "use a plain \"top_k\""},
      {[](RoutingSpec& s) { s.losses.z_of_clean = true; }, "the clean ones are the only ones"},
  });
}

}  // namespace
}  // namespace moe::test::validate_test
