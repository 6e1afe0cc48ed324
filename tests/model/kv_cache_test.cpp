// The cache in each of its dtypes: what is refused, how close it stays to the exact one, and that
// pieces and threads change no bit of what it gives.
#include "model/kv_cache.h"

#include "core/error.h"
#include "support/files.h"
#include "support/model_check.h"
#include "support/same_rows.h"

namespace moe::test::kv_cache_test {
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

// Leaves the free blocks in an order other than they lie in.
void scatter_blocks(KvCache& cache) {
  std::vector<int32_t> slots;
  while (cache.available() > 0) {
    slots.push_back(cache.open());
    cache.extend(slots.back(), 1);
  }
  for (size_t i = 0; i < slots.size(); ++i) cache.close(slots[i * 3 % slots.size()]);
}

// Logits [N,V] of kLength tokens, `piece` at a time through a cache; `scattered`: whose blocks come
// in no order.
std::vector<float> logits_in_pieces(Model& model, int threads, DType compute, DType cached,
                                    int64_t piece, bool scattered = false) {
  moe::Run run(threads, compute);
  KvCache cache(model.config(), cached, 3 * kLength, run.device);
  if (scattered) scatter_blocks(cache);
  const std::vector<int32_t> slots = {cache.open()};
  const int64_t vocab = model.config().vocab;
  std::vector<float> all;
  for (int64_t at = 0; at < kLength; at += piece) {
    const int64_t count = std::min(piece, kLength - at);
    std::vector<int32_t> ids, positions;
    for (int64_t i = at; i < at + count; ++i) {
      ids.push_back(static_cast<int32_t>(uniform_index(
          RngKey::from_seed(5), static_cast<uint64_t>(i), static_cast<uint64_t>(vocab))));
      positions.push_back(static_cast<int32_t>(i));
    }
    const std::vector<int64_t> bounds = {0, count};
    cache.extend(slots[0], count);
    const ArenaScope scope(run.saved);
    const RoutingSpec none;
    ModelSaved saved;
    model.forward(
        run, {.batch = {ids, positions, bounds, slots}, .routing = &none, .cache = &cache}, saved);
    const Tensor out = run.saved.alloc(DType::f32, {count, vocab});
    model.logits(run, out, saved.hidden);
    all.insert(all.end(), out.as<float>(), out.as<float>() + out.numel());
  }
  return all;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  return relative_error(std::vector<double>(a.begin(), a.end()),
                        std::vector<double>(b.begin(), b.end()));
}

class Cache : public ::testing::TestWithParam<std::tuple<DType, int64_t>> {};

TEST_P(Cache, PiecesAndThreadsChangeNoBit) {
  const auto [compute, window] = GetParam();
  if (compute == DType::bf16 && !ops::products_keep_row_bits(compute))
    GTEST_SKIP() << "products here do not keep the bits of a row";
  Model model(wide_heads(window));
  draw_params(model, 4);
  for (DType cached : kCached) {
    const auto whole = logits_in_pieces(model, 2, compute, cached, kLength);
    for (int64_t piece : {1, 7, 64})
      EXPECT_TRUE(same_rows(logits_in_pieces(model, 2, compute, cached, piece), whole, compute))
          << name_of(cached) << " in pieces of " << piece;
    for (int threads : {1, 3})
      EXPECT_TRUE(same_rows(logits_in_pieces(model, threads, compute, cached, 7), whole, compute))
          << name_of(cached);
    EXPECT_TRUE(same_rows(logits_in_pieces(model, 2, compute, cached, 7, true), whole, compute))
        << name_of(cached) << " in blocks that lie apart";
  }
}

// The fewer bits the further from the exact cache, and none as far as a wrong number would be.
TEST_P(Cache, EachDtypeIsAsCloseAsItsRounding) {
  const auto [compute, window] = GetParam();
  Model model(wide_heads(window));
  draw_params(model, 4);
  const auto exact = logits_in_pieces(model, 2, DType::f32, DType::f32, 64);
  if (compute == DType::bf16) {
    for (DType cached : kCached)
      EXPECT_LE(distance(logits_in_pieces(model, 2, compute, cached, 64), exact), 3e-2)
          << name_of(cached);
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

// A chunk is a text of its own: nothing is seen of what is before it, and all of what is in it.
TEST(CacheOfChunks, PiecesAndThreadsChangeNoBit) {
  ModelConfig c = wide_heads(64);
  c.window_chunks = true;
  c.window_layers = {0};
  Model model(c);
  draw_params(model, 4);
  for (const DType cached : kCached) {
    const auto whole = logits_in_pieces(model, 2, DType::f32, cached, kLength);
    for (const int64_t piece : {1, 7, 64, 100})
      EXPECT_TRUE(same_rows(logits_in_pieces(model, 2, DType::f32, cached, piece, piece == 7),
                            whole, DType::f32))
          << name_of(cached) << " in pieces of " << piece;
    EXPECT_TRUE(same_rows(logits_in_pieces(model, 3, DType::f32, cached, 100), whole, DType::f32))
        << name_of(cached);
  }
}

// Up to the end of the first chunk all is seen, behind it nothing of that.
TEST(CacheOfChunks, TheFirstIsReadAsWithoutChunks) {
  ModelConfig c = wide_heads(64);
  c.window_chunks = true;
  Model chunked(c);
  c.window_chunks = false;
  c.attention_window = 0;
  Model whole(c);
  draw_params(chunked, 4);
  draw_params(whole, 4);
  const auto a = logits_in_pieces(chunked, 2, DType::f32, DType::f32, 50),
             b = logits_in_pieces(whole, 2, DType::f32, DType::f32, 50);
  const auto vocab = static_cast<size_t>(c.vocab), first = 64 * vocab;
  for (size_t i = 0; i < first; ++i) ASSERT_EQ(a[i], b[i]) << "token " << i / vocab;
  EXPECT_NE(a[first], b[first]);
}

INSTANTIATE_TEST_SUITE_P(compute, Cache,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values(int64_t{0}, int64_t{40})));

void expect_refused(const ModelConfig& config, DType dtype, const std::string& words) {
  try {
    KvCache(config, dtype, 8);
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
  expect_refused(c, DType::q8_0,
                 "in blocks of 32 numbers, but the model's heads have 16; take f16 or bf16");
  EXPECT_NO_THROW(KvCache(c, DType::f16, 8));
  c = wide_heads(96);
  EXPECT_NO_THROW(KvCache(c, DType::f16, 8));
  c.window_chunks = true;
  expect_refused(c, DType::f16, "chunks of 96 tokens, and keys are kept in blocks of 64");
  c.attention_window = 128;
  EXPECT_NO_THROW(KvCache(c, DType::f16, 8));
}

TEST(KvCacheSlots, BlocksAreHandedOutAndComeBack) {
  KvCache cache(wide_heads(0), DType::f32, 300);
  EXPECT_EQ(cache.capacity(), 320) << "five blocks of 64";
  EXPECT_EQ(cache.available(), 320);
  const int32_t a = cache.open(), b = cache.open();
  EXPECT_NE(a, b);
  cache.extend(a, 1);
  EXPECT_EQ(cache.available(), 256);
  cache.extend(a, 63);
  EXPECT_EQ(cache.available(), 256) << "the block had room";
  cache.extend(b, 65);
  EXPECT_EQ(cache.available(), 128);
  EXPECT_EQ(cache.length(a), 64);
  EXPECT_EQ(cache.length(b), 65);
  cache.truncate(b, 64);
  EXPECT_EQ(cache.available(), 192);
  cache.truncate(b, 70);
  EXPECT_EQ(cache.length(b), 64) << "truncating adds nothing";
  cache.close(a);
  EXPECT_EQ(cache.available(), 256);
  EXPECT_EQ(cache.open(), a) << "a slot is used again";
  EXPECT_EQ(cache.length(a), 0);
}

TEST(KvCacheSlots, AFullCacheSaysWhatToDoAndChangesNothing) {
  KvCache cache(wide_heads(0), DType::f32, 128);
  const int32_t a = cache.open(), b = cache.open();
  cache.extend(a, 65);
  EXPECT_FAILS(cache.extend(b, 1),
               "end or truncate another sequence, or give the cache a larger capacity");
  EXPECT_EQ(cache.length(b), 0);
  EXPECT_FAILS(cache.extend(a, 64),
               "room for 128 tokens in blocks of 64, and 0 blocks are free where 1 are needed to "
               "go on to token 129");
  EXPECT_EQ(cache.length(a), 65);
  cache.truncate(a, 64);
  EXPECT_NO_THROW(cache.extend(b, 64));
}

TEST(KvCacheSlots, RefusesABatchThatItWasNotExtendedFor) {
  Model model(wide_heads(0));
  draw_params(model, 4);
  moe::Run run(1);
  KvCache cache(model.config(), DType::f32, 64, run.device);
  const int32_t slot = cache.open();
  const auto forward = [&](std::vector<int32_t> slots) {
    const std::vector<int32_t> ids = {1, 2}, positions = {0, 1};
    const std::vector<int64_t> bounds = {0, 2};
    const RoutingSpec none;
    ModelSaved saved;
    model.forward(
        run, {.batch = {ids, positions, bounds, slots}, .routing = &none, .cache = &cache}, saved);
  };
  EXPECT_FAILS(forward({}), "1 sequences names 0 slots");
  EXPECT_FAILS(forward({slot}), "position 0 of slot 0, which was extended to 0 tokens");
  EXPECT_FAILS(forward({7}), "slot 7 of the cache has no sequence");
  cache.extend(slot, 2);
  EXPECT_NO_THROW(forward({slot}));
  cache.close(slot);
  EXPECT_FAILS(forward({slot}), "has no sequence");
}

}  // namespace
}  // namespace moe::test::kv_cache_test
