// A model whose experts are spread over processes, each with its own text: what each has of its
// tokens is what it has with all experts at hand, and an expert's gradient is the sum of what it
// gets from everybody.
#include "support/processes.h"
#include "support/files.h"
#include "support/model_check.h"
#include "support/routings.h"

namespace moe::test::processes_test {
namespace {

constexpr int64_t kExperts = 6;
constexpr int64_t kLengths[] = {9, 4, 17, 1};  // tokens of each process

ModelConfig config_of(const RoutingOptions& routing) {
  ModelConfig c = small();
  c.vocab = 50;
  c.width = 16;
  c.context = 32;
  c.routing = routing;
  return c;
}

// One training forward and backward.
struct Side {
  Model model;
  moe::Run run;
  std::vector<double> hidden, nll;
  std::vector<std::vector<double>> gradients;  // as params()

  Side(const ModelConfig& c, DType dtype, const comm::Group& group, int process, Keep keep)
      : model(c, Storage::owned, group), run(1, dtype) {
    model.initialise(3);
    model.enable_grads();
    const int64_t length = kLengths[process];
    std::vector<int32_t> ids, positions, targets;
    for (int64_t i = 0; i < length; ++i) {
      ids.push_back(static_cast<int32_t>(uniform_index(
          RngKey::from_seed(static_cast<uint64_t>(process)), static_cast<uint64_t>(i), 50)));
      positions.push_back(static_cast<int32_t>(i));
      targets.push_back(static_cast<int32_t>((7 * i + process) % 50));
    }
    const std::vector<int64_t> bounds = {0, length};
    const RoutingSpec spec = train_spec(c.routing);
    ModelSaved saved;
    model.forward(run,
                  {.batch = {ids, positions, bounds},
                   .routing = &spec,
                   .keep = keep,
                   .key = RngKey::from_seed(5),
                   .wanted = Wanted::all()},
                  saved);
    hidden = values(saved.hidden);
    const Tensor losses = run.saved.alloc(DType::f32, {length});
    model.loss_forward(run, losses, targets, saved);
    nll = values(losses);
    model.backward(run, targets, 0.1f, c.routing.coef, saved);
    for (Param* p : model.params()) {
      if (p->is_trained()) ops::settle_grad(run, *p);
      gradients.push_back(p->is_trained() ? values(p->grad) : std::vector<double>());
    }
  }
};

void expect_spread_is_whole(const ModelConfig& c, DType dtype, int size, Keep keep) {
  run_processes(size, [&](const comm::Group& group) {
    Side spread(c, dtype, group, group.rank, keep), whole(c, dtype, {}, group.rank, keep);
    EXPECT_EQ(spread.hidden, whole.hidden) << "process " << group.rank;
    EXPECT_EQ(spread.nll, whole.nll) << "process " << group.rank;
    const Span share = partition(kExperts, group.rank, group.size);
    for (size_t i = 0; i < whole.gradients.size(); ++i) {
      const Param& param = *whole.model.params()[i];
      std::vector<double> want = whole.gradients[i];
      if (param.part == Part::experts) {
        group.sum(std::span(want));
        const auto one = static_cast<int64_t>(want.size()) / kExperts;
        want = {want.begin() + share.begin * one, want.begin() + share.end * one};
      }
      if (norm(want) > 0)
        EXPECT_LE(relative_error(spread.gradients[i], want), dtype == DType::f32 ? 1e-5 : 1e-2)
            << param.name << ", process " << group.rank;
    }
  });
}

// In any number of processes a model begins as the same one.
TEST(Processes, SharesOfABankAreDrawnAsTheWhole) {
  const ModelConfig c = config_of(small_routing("olmoe", kExperts, 2));
  Model whole(c);
  whole.initialise(3);
  for (int rank = 0; rank < 4; ++rank) {
    Model share(c, Storage::owned, {.rank = rank, .size = 4});
    share.initialise(3);
    for (size_t i = 0; i < whole.params().size(); ++i) {
      const Param &all = *whole.params()[i], &here = *share.params()[i];
      ASSERT_EQ(here.is_share(), all.part == Part::experts) << all.name;
      Tensor want = all.value;
      if (here.is_share()) {
        want.data = all.value.at(here.share.first).data;
        want.shape[0] = here.value.shape[0];
      }
      EXPECT_EQ(values(here.value), values(want)) << all.name;
      EXPECT_EQ(describe(here.whole()), describe(all.value));
    }
  }
  EXPECT_FAILS(Model(c, Storage::owned, {.rank = 0, .size = 7}),
               "a layer's 6 experts cannot lie on 7 processes");
  ModelConfig by_neuron = c;
  by_neuron.routing = small_routing("sketch", 6, 2);
  by_neuron.expert_width = 1;
  ASSERT_TRUE(by_neuron.by_neuron());
  EXPECT_FAILS(Model(by_neuron, Storage::owned, {.rank = 0, .size = 2}), "without mpirun");
}

TEST(Processes, ExpertsMayLieOnOthers) {
  for (const RoutingOptions& routing : small_routings(kExperts, 2))
    for (int size : {2, 4}) {
      SCOPED_TRACE(routing.recipe);
      expect_spread_is_whole(config_of(routing), DType::f32, size, Keep::all);
    }
}

TEST(Processes, BesideSharedExpertsWithBiasesAndInBf16) {
  ModelConfig c = config_of(small_routing("qwen3-moe", kExperts, 2));
  c.shared_experts = 1;
  c.shared_width = 16;
  c.shared_gate = true;
  c.expert_down_bias = true;
  for (DType dtype : {DType::f32, DType::bf16})
    for (Keep keep : {Keep::all, Keep::inputs}) expect_spread_is_whole(c, dtype, 3, keep);
}

TEST(Processes, WeightsOfWhatExpertsAreGivenTravelWithTheirRows) {
  ModelConfig c = config_of(small_routing("qwen3-moe", kExperts, 2));
  c.weigh_inputs = true;
  for (DType dtype : {DType::f32, DType::bf16})
    for (Keep keep : {Keep::all, Keep::inputs}) expect_spread_is_whole(c, dtype, 3, keep);
}

TEST(Processes, BranchesWithNormsOfTheirOwn) {
  ModelConfig c = config_of(small_routing("gemma4", kExperts, 2));
  c.branch_norms = true;
  c.shared_experts = 1;
  c.shared_width = 16;
  for (DType dtype : {DType::f32, DType::bf16}) expect_spread_is_whole(c, dtype, 3, Keep::all);
}

}  // namespace
}  // namespace moe::test::processes_test
