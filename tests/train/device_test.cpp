// Models whose memory is a device's: training steps and quantised weights there and on the CPU. In
// a build without CUDA only that it says so.
#include "ops/memory.h"
#include "support/a_device.h"
#include "support/bound_model.h"
#include "support/tiny_model.h"
#include "tensor/on_host.h"

namespace moe::test::device_test {
namespace {

std::vector<double> losses(const ModelConfig& config, DeviceKind kind, DType dtype) {
  const auto model = fresh(config);
  TrainOptions o = tiny_options();
  o.device = kind;
  o.dtype = dtype;
  const Corpus corpus = tiny_corpus();
  std::vector<double> all;
  {
    Trainer trainer(*model, o, corpus);
    for (int i = 0; i < 3; ++i) all.push_back(trainer.step().ce);
  }
  // It is on the CPU again, with what was learned.
  double sum = 0;
  for (const Param* param : model->params())
    for (int64_t i = 0; i < param->value.numel(); ++i)
      sum += std::abs(static_cast<double>(param->value.as<float>()[i]));
  all.push_back(sum);
  return all;
}

TEST(OnADevice, StepsAreThoseOfTheCpu) {
  if (a_device() == nullptr) return;
  for (const ModelConfig& config : {plain_config(), noisy_config()}) {
    const auto there = losses(config, DeviceKind::cuda, DType::f32),
               here = losses(config, DeviceKind::cpu, DType::f32);
    for (size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(there[i], here[i], 1e-4 * here[i]) << i;
  }
}

std::vector<double> logits(Model& model, moe::Run& run) {
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6}, positions = {0, 1, 2, 3, 4, 5};
  const std::vector<int64_t> bounds = {0, 6};
  const RoutingSpec spec = eval_spec(model.config().routing);
  const ArenaScope scope(run.saved);
  ModelSaved saved;
  model.forward(run, {.batch = {ids, positions, bounds}, .routing = &spec}, saved);
  const Tensor out = run.saved.alloc(DType::f32, {6, model.config().vocab});
  model.logits(run, out, saved.hidden);
  OnHost host(run);
  return values(host.read(out));
}

TEST(OnADevice, QuantisedWeightsAreTheirNumbers) {
  Device* there = a_device();
  if (there == nullptr) return;
  const auto model = fresh(plain_config());
  const auto bound = bound_like(*model, DType::q8_0);
  moe::Run here(2), run(2, DType::f32, there);
  here.device = nullptr;
  here.widen = true;  // rows as they are, as on a device
  const auto want = logits(*bound, here);
  bound->move_to(there);
  expect_near(logits(*bound, run), want, 1e-4, "logits");
  EXPECT_EQ(ops::copies_taken(bound->params()), 0);  // which are the CPU's
  bound->move_to(nullptr);
  EXPECT_EQ(logits(*bound, here), want);
}

}  // namespace
}  // namespace moe::test::device_test
