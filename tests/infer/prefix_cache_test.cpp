// Blocks of texts that were read: found by what they hold, shared, and given back oldest first.
#include "infer/prefix_cache.h"

#include <numeric>

#include "core/error.h"
#include "support/files.h"
#include "support/tiny_model.h"

namespace moe::test::prefix_cache_test {
namespace {

std::vector<int32_t> count_from(int32_t first, int64_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

struct Fixture {
  KvCache cache{plain_config(), DType::f32, 640};  // 10 blocks
  PrefixCache prefixes{cache};

  // A sequence that reads `ids` and ends; its first `held` tokens were there already.
  int64_t read(const std::vector<int32_t>& ids) {
    const int32_t slot = cache.open();
    const int64_t held = prefixes.adopt(slot, ids);
    cache.extend(slot, std::ssize(ids) - held);
    prefixes.keep(slot, ids);
    cache.close(slot);
    return held;
  }
};

TEST(PrefixCache, FindsWhatATextBeginsWith) {
  Fixture f;
  const auto ids = count_from(0, 200);
  EXPECT_EQ(f.read(ids), 0);
  EXPECT_EQ(f.prefixes.held(ids), 192);
  EXPECT_EQ(f.read(ids), 192);
  EXPECT_EQ(f.cache.available(), 7 * 64);
  auto other = ids;
  other[100] = 999;
  EXPECT_EQ(f.read(other), 64);
  EXPECT_EQ(f.read(other), 192);
  EXPECT_EQ(f.read(count_from(1, 200)), 0);
  // The last token is read in any case, since its logits are wanted.
  EXPECT_EQ(f.read({ids.begin(), ids.begin() + 128}), 64);
  EXPECT_EQ(f.read({ids.begin(), ids.begin() + 129}), 128);
}

TEST(PrefixCache, KeysThatAreTurnedOtherwiseAreOthers) {
  ModelConfig config = plain_config();
  const std::vector<float> ones(static_cast<size_t>(config.head_width / 2), 1);
  config.rope_scaling = {.kind = RopeScaling::Kind::longrope,
                         .original_context = 200,
                         .short_factors = ones,
                         .long_factors = ones};
  KvCache cache(config, DType::f32, 640);
  PrefixCache prefixes(cache);
  const auto ids = count_from(0, 200);
  const auto read = [&](int64_t limit) {
    const int32_t slot = cache.open(limit);
    const int64_t held = prefixes.adopt(slot, ids);
    cache.extend(slot, std::ssize(ids) - held);
    prefixes.keep(slot, ids);
    cache.close(slot);
    return held;
  };
  EXPECT_EQ(read(200), 0);
  EXPECT_EQ(prefixes.held(ids, false), 192);
  EXPECT_EQ(prefixes.held(ids, true), 0);
  EXPECT_EQ(read(201), 0);
  EXPECT_EQ(prefixes.held(ids, true), 192);
  EXPECT_EQ(read(300), 192);
  EXPECT_EQ(read(100), 192);
}

TEST(PrefixCache, GivesBackWhatWasAskedForLongestAgo) {
  Fixture f;
  f.read(count_from(0, 192));
  f.read(count_from(1000, 192));
  f.read(count_from(0, 130));  // asks for the first two blocks again
  f.prefixes.make_room(6 * 64);
  EXPECT_EQ(f.cache.available(), 6 * 64);
  EXPECT_EQ(f.read(count_from(0, 192)), 128);  // of a text its end goes first
  f.prefixes.make_room(640);
  EXPECT_EQ(f.cache.available(), 640);
  EXPECT_EQ(f.read(count_from(0, 192)), 0);
}

TEST(PrefixCache, LeavesBlocksThatASequenceHas) {
  Fixture f;
  f.read(count_from(0, 192));
  const int32_t slot = f.cache.open();
  EXPECT_EQ(f.prefixes.adopt(slot, count_from(0, 150)), 128);
  f.prefixes.make_room(640);
  EXPECT_EQ(f.cache.available(), 8 * 64);
  EXPECT_EQ(f.cache.length(slot), 128);
  f.cache.close(slot);
  f.prefixes.make_room(640);
  EXPECT_EQ(f.cache.available(), 640);
}

// Who goes on from the middle of a block that others have writes to a copy.
// Blocks that a sequence has hang under others that are nobody's.
TEST(PrefixCache, LetsGoOfWhatLiesBeforeASequencesBlocks) {
  Fixture f;
  const auto ids = count_from(0, 256);
  f.read({ids.begin(), ids.begin() + 192});
  const int32_t slot = f.cache.open();
  f.cache.extend(slot, 256);
  f.prefixes.keep(slot, ids);
  EXPECT_EQ(f.cache.available(), 3 * 64);
  f.prefixes.make_room(6 * 64);
  EXPECT_EQ(f.cache.available(), 6 * 64);
  EXPECT_EQ(f.prefixes.held(ids), 0);
  f.cache.close(slot);
  EXPECT_EQ(f.cache.available(), 10 * 64);
}

TEST(PrefixCache, ASharedBlockIsNotWrittenTo) {
  Fixture f;
  f.read(count_from(0, 130));
  const int32_t slot = f.cache.open();
  ASSERT_EQ(f.prefixes.adopt(slot, count_from(0, 130)), 128);
  const int32_t shared = f.cache.blocks(slot)[1];
  f.cache.truncate(slot, 100);
  f.cache.extend(slot, 3);
  EXPECT_NE(f.cache.blocks(slot)[1], shared);
  EXPECT_EQ(f.cache.holders(shared), 1);
  EXPECT_EQ(f.read(count_from(0, 130)), 128);
}

TEST(PrefixCache, NobodyBeginsWithWhatIsNotHeld) {
  Fixture f;
  const int32_t slot = f.cache.open();
  EXPECT_FAILS(f.cache.adopt(slot, std::vector<int32_t>{3}), "held by nobody");
  f.cache.extend(slot, 1);
  EXPECT_FAILS(f.cache.adopt(slot, f.cache.blocks(slot)), "holds 1 tokens already");
}

TEST(PrefixCache, OfStatesHoldsNothing) {
  ModelConfig c;
  c.linear = {.key_heads = 1, .value_heads = 1, .key_width = 4, .value_width = 4, .conv_width = 2};
  c.linear_layers = {0};
  KvCache cache(c, DType::f32, 256);
  PrefixCache prefixes(cache);
  const int32_t slot = cache.open();
  cache.extend(slot, 130);
  prefixes.keep(slot, count_from(0, 130));
  EXPECT_EQ(prefixes.held(count_from(0, 130)), 0);
  EXPECT_FAILS(cache.adopt(cache.open(), cache.blocks(slot)), "belong to one sequence");
  cache.truncate(slot, 64);
  EXPECT_EQ(cache.length(slot), 0);
}

}  // namespace
}  // namespace moe::test::prefix_cache_test
