// The cache in each of its dtypes: what is refused, how close it stays to the exact one, and that pieces and threads change no bit of what it gives.
#include "model/kv_cache.h"

#include "core/error.h"
#include "support/model_check.h"
#include "support/same_rows.h"

namespace moe::test {
namespace {

constexpr DType kCached[] = {DType::f32, DType::bf16, DType::f16, DType::q8_0};
constexpr int64_t kLength = 150;

ModelConfig wide_heads(int64_t window) {
  ModelConfig c = small();
  c.vocab = 50;
  c.width = 64;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_width = 32;
  c.context = 200;
  c.dense_width = 64;
  c.attention_window = window;
  c.init.std = 0.1f;
  return c;
}

// Logits [N,V] of kLength tokens, `piece` at a time through a cache.
std::vector<float> logits_in_pieces(Model& model, int threads, DType compute, DType cached, int64_t piece) {
  moe::Run run(threads, compute);
  KvCache cache(model.config(), cached, 1, kLength);
  const int64_t vocab = model.config().vocab;
  std::vector<float> all;
  for (int64_t at = 0; at < kLength; at += piece) {
    const int64_t count = std::min(piece, kLength - at);
    std::vector<int32_t> ids, positions;
    for (int64_t i = at; i < at + count; ++i) {
      ids.push_back(static_cast<int32_t>(uniform_index(RngKey::from_seed(5), static_cast<uint64_t>(i), static_cast<uint64_t>(vocab))));
      positions.push_back(static_cast<int32_t>(i));
    }
    const std::vector<int64_t> bounds = {0, count};
    const Batch batch{ids, positions, bounds};
    const ArenaScope scope(run.saved);
    const RoutingSpec none;
    ModelSaved saved;
    model.forward(run, {&batch, &none, Keep::nothing, &cache}, saved);
    const Tensor out = run.saved.alloc(DType::f32, {count, vocab});
    model.logits(run, out, saved.hidden);
    all.insert(all.end(), out.as<float>(), out.as<float>() + out.numel());
  }
  return all;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  return relative_error(std::vector<double>(a.begin(), a.end()), std::vector<double>(b.begin(), b.end()));
}

class Cache : public ::testing::TestWithParam<std::tuple<DType, int64_t>> {};

TEST_P(Cache, PiecesAndThreadsChangeNoBit) {
  const auto [compute, window] = GetParam();
  if (compute == DType::bf16 && !ops::products_keep_row_bits(compute)) GTEST_SKIP() << "products here do not keep the bits of a row";
  Model model(wide_heads(window));
  draw_params(model, 4);
  for (DType cached : kCached) {
    const auto whole = logits_in_pieces(model, 2, compute, cached, kLength);
    for (int64_t piece : {1, 7, 64})
      EXPECT_TRUE(same_rows(logits_in_pieces(model, 2, compute, cached, piece), whole, compute)) << name_of(cached) << " in pieces of " << piece;
    for (int threads : {1, 3}) EXPECT_TRUE(same_rows(logits_in_pieces(model, threads, compute, cached, 7), whole, compute)) << name_of(cached);
  }
}

// The fewer bits the further from the exact cache, and none as far as a wrong number would be.
TEST_P(Cache, EachDtypeIsAsCloseAsItsRounding) {
  const auto [compute, window] = GetParam();
  Model model(wide_heads(window));
  draw_params(model, 4);
  const auto exact = logits_in_pieces(model, 2, DType::f32, DType::f32, 64);
  if (compute == DType::bf16) {
    for (DType cached : kCached) EXPECT_LE(distance(logits_in_pieces(model, 2, compute, cached, 64), exact), 3e-2) << name_of(cached);
    return;
  }
  const double half = distance(logits_in_pieces(model, 2, compute, DType::f16, 64), exact),
               brain = distance(logits_in_pieces(model, 2, compute, DType::bf16, 64), exact),
               bytes = distance(logits_in_pieces(model, 2, compute, DType::q8_0, 64), exact);
  EXPECT_GT(half, 1e-6);
  EXPECT_LE(half, 1e-3);
  EXPECT_GT(brain, half);
  EXPECT_LE(brain, 1e-2);
  EXPECT_GT(bytes, half);
  EXPECT_LE(bytes, 2e-2);
}

INSTANTIATE_TEST_SUITE_P(compute, Cache, ::testing::Combine(::testing::Values(DType::f32, DType::bf16), ::testing::Values(int64_t{0}, int64_t{40})));

void expect_refused(const ModelConfig& config, DType dtype, const std::string& words) {
  try {
    KvCache(config, dtype, 1, 8);
    ADD_FAILURE() << "accepted " << name_of(dtype);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(KvCacheChecks, RefusesWhatItCannotKeep) {
  ModelConfig c = wide_heads(0);
  expect_refused(c, DType::q4_0, "cannot be kept in q4_0; take f32, bf16, f16 or q8_0");
  expect_refused(c, DType::i32, "cannot be kept in i32");
  c.head_width = 16;
  expect_refused(c, DType::q8_0, "in blocks of 32 numbers, but the model's heads have 16; take f16 or bf16");
  EXPECT_NO_THROW(KvCache(c, DType::f16, 1, 8));
}

}  // namespace
}  // namespace moe::test
