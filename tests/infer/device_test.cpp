// Texts that are written on a device: prompts, tokens one by one, texts beside each other, as on
// the CPU. In a build without CUDA nothing.
#include <initializer_list>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "infer/model_runner.h"
#include "support/a_device.h"
#include "support/files.h"
#include "support/rowwise.h"
#include "support/tiny_model.h"

namespace moe::test::device_test {
namespace {

// Logits of a prompt, of tokens behind it, and of two texts beside each other.
std::vector<double> logits_of_texts(Model& model, moe::Run& run) {
  ModelRunner runner(model, run, 4 * ops::kKeyBlock);
  std::vector<double> all;
  const auto step = [&](std::initializer_list<std::pair<int32_t, std::vector<int32_t>>> texts) {
    std::vector<StepRows> rows;
    for (const auto& [slot, ids] : texts) rows.push_back({slot, ids});
    std::vector<float> logits(texts.size() * static_cast<size_t>(model.config().vocab));
    runner.step(logits, rows);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  const int32_t one = runner.cache().open(ops::kKeyBlock),
                two = runner.cache().open(ops::kKeyBlock);
  step({{one, {5, 3, 8, 1, 2}}});
  for (const int32_t id : {7, 4, 9}) step({{one, {id}}});
  step({{one, {6}}, {two, {2, 2, 1}}});
  step({{one, {1}}, {two, {3}}});
  return all;
}

TEST(OnADevice, TextsAreThoseOfTheCpu) {
  Device* there = a_device();
  if (there == nullptr) return;
  const auto model = fresh(plain_config());
  moe::Run here(2), run(2, DType::f32, there);
  here.device = nullptr;
  const std::vector<double> want = logits_of_texts(*model, here);
  model->move_to(there);
  expect_near(logits_of_texts(*model, run), want, 1e-4, "logits");
  model->move_to(nullptr);
}

TEST(OnADevice, RefusesWeightsThatOnlyTheCpuReads) {
  Device* there = a_device();
  if (there == nullptr) return;
  moe::Run run(1, DType::f32, there);
  for (const DType dtype : {DType::iq2_xs, DType::tq1_0}) {
    Arena arena;
    Param w;
    w.value = Tensor(arena.alloc_bytes(static_cast<size_t>(bytes_of(dtype, 256))), dtype, {1, 256});
    const Tensor x = arena.alloc(DType::f32, {1, 256}), y = arena.alloc(DType::f32, {1, 1});
    const std::vector<int64_t> all = {0, 1};
    EXPECT_FAILS(ops::matmul_forward(run, y, x, w, all),
                 fmt::format("weights of {} are not read on a GPU", name_of(dtype)));
    const std::vector<int32_t> ids = {0};
    EXPECT_FAILS(ops::embedding_forward(run, x, w, ids), "are not read on a GPU");
  }
}

}  // namespace
}  // namespace moe::test::device_test
