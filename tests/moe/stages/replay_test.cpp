// Recorded choices: their numbers, what is refused, and how they take the place of a router's own.
#include "moe/stages/replay.h"

#include "moe/losses/aux_loss.h"
#include "support/check.h"
#include "support/files.h"

namespace moe::test::replay_test {
namespace {

using Ints = std::vector<int32_t>;

Tensor matrix(Ints& numbers, int64_t cols) {
  return Tensor(numbers.data(), DType::i32, {static_cast<int64_t>(numbers.size()) / cols, cols});
}
Ints numbers(const Tensor& t) { return {t.as<int32_t>(), t.as<int32_t>() + t.numel()}; }

TEST(Record, TellsChosenSentAndNothingApart) {
  Ints choice = {3, 0, 2, 1, 0, 5}, selected = {1, 1, 1, 0, 1, 0}, kept = {1, 0, 1, 0, 0, 0},
       out(6);
  record_choices(matrix(out, 2), matrix(choice, 2), matrix(selected, 2), matrix(kept, 2));
  EXPECT_EQ(out, (Ints{3, -2, 2, -1, -2, -1}));
  for (const int32_t e : {0, 1, 7, 1 << 30}) EXPECT_EQ(chosen_expert(not_sent(e)), e);
  EXPECT_EQ(chosen_expert(4), 4);
  EXPECT_EQ(chosen_expert(kNothingChosen), kNothingChosen);
}

TEST(Record, IsReplayedEntryByEntry) {
  moe::Run run(2);
  // Of five experts; the router itself chose {1,3}, {0}, {2,4} and {4,3}.
  Ints choice = {1, 3, 0, 1, 2, 4, 4, 3}, selected = {1, 1, 1, 0, 1, 1, 1, 1}, kept(8, 9),
       agreed(4, 9);
  Ints recorded = {3, not_sent(0), -1, 0, -1, -1, not_sent(3), 4};
  const int64_t own =
      replay_choices(run, matrix(choice, 2), matrix(selected, 2), matrix(kept, 2),
                     Tensor(agreed.data(), DType::i32, {4}), matrix(recorded, 2), 5);
  EXPECT_EQ(own, 7);
  // a slot without a choice holds an expert that the token has not
  EXPECT_EQ(choice, (Ints{3, 0, 1, 0, 0, 1, 3, 4}));
  EXPECT_EQ(selected, (Ints{1, 1, 0, 1, 0, 0, 1, 1}));
  EXPECT_EQ(kept, (Ints{1, 0, 0, 1, 0, 0, 0, 1}));
  EXPECT_EQ(agreed, (Ints{1, 1, 0, 2}));
}

// Every expert stands once in a token's row where K = E, as the select stages leave it.
TEST(Record, FillsUpTheSlotsOfAllExperts) {
  moe::Run run(1);
  Ints choice = {0, 1, 2, 3}, selected = {1, 1, 1, 1}, kept(4), agreed(1),
       recorded = {-1, 2, -1, not_sent(0)};
  replay_choices(run, matrix(choice, 4), matrix(selected, 4), matrix(kept, 4),
                 Tensor(agreed.data(), DType::i32, {1}), matrix(recorded, 4), 4);
  EXPECT_EQ(choice, (Ints{1, 2, 3, 0}));
  EXPECT_EQ(agreed, (Ints{2}));
}

TEST(Record, NamesTheTokenOfWhatItRefuses) {
  Ints good = {0, 3, -1, -1, not_sent(3), 2};
  for (const int threads : {1, 2}) {
    check_recorded(matrix(good, 2), 3, 2, 4, "here", threads);
    const auto refused = [&](Ints bad, const char* part) {
      EXPECT_FAILS(check_recorded(matrix(bad, 2), 3, 2, 4, "here", threads), part);
      EXPECT_FAILS(check_recorded(matrix(bad, 2), 3, 2, 4, "here", threads), "here: ");
    };
    refused({0, 3, 4, 1, 2, 1}, "token 1 of 3 has expert 4 at rank 0, but there are 4 experts");
    refused({0, 3, 0, 1, not_sent(4), 1}, "token 2 of 3 has expert 4 at rank 0");
    refused({0, 3, 0, 1, INT32_MIN, 1}, "token 2 of 3 has expert 2147483646");
    refused({0, 3, 0, 1, 1, INT32_MAX}, "token 2 of 3 has expert 2147483647 at rank 1");
    refused({2, 2, 0, 1, 1, 2}, "token 0 of 3 has expert 2 twice");
    refused({2, 1, 0, 1, 1, not_sent(1)}, "token 2 of 3 has expert 1 twice");
    EXPECT_FAILS(check_recorded(matrix(good, 2), 4, 2, 4, "here", threads), "i32 [4, 2]");
    EXPECT_FAILS(check_recorded(matrix(good, 3), 3, 2, 4, "here", threads), "i32 [2, 3]");
  }
  std::vector<float> floats(6);
  EXPECT_FAILS(check_recorded(Tensor(floats.data(), DType::f32, {3, 2}), 3, 2, 4, "here"),
               "f32 [3, 2]");
  // The first of many, whatever the threads.
  Ints many(2 * 1000, -1);
  many[2 * 400] = many[2 * 900] = 7;
  EXPECT_FAILS(check_recorded(matrix(many, 2), 1000, 2, 4, "here", 2), "token 400 of 1000");
}

TEST(Record, IsTheSameForAnyThreads) {
  constexpr int32_t kTokens = 1000, kExperts = 16, kSlots = 3;
  Ints recorded, choices;
  for (uint64_t n = 0; n < kTokens; ++n)
    for (uint64_t i = 0; i < kSlots; ++i) {
      const RngKey key = RngKey::from_seed(n);
      const auto e = static_cast<int32_t>((uniform_index(key, 0, kExperts) + i * 5) % kExperts);
      recorded.push_back(uniform_index(key, 2 + i, 4) == 0   ? kNothingChosen
                         : uniform_index(key, 9 + i, 4) == 0 ? not_sent(e)
                                                             : e);
      choices.push_back(static_cast<int32_t>((uniform_index(key, 1, kExperts) + i) % kExperts));
    }
  std::vector<Ints> seen;
  for (const int threads : {1, 2}) {
    moe::Run run(threads);
    Ints choice = choices, selected(choices.size(), 1), kept(choices.size()), agreed(kTokens);
    EXPECT_EQ(replay_choices(run, matrix(choice, kSlots), matrix(selected, kSlots),
                             matrix(kept, kSlots), Tensor(agreed.data(), DType::i32, {kTokens}),
                             matrix(recorded, kSlots), kExperts),
              kTokens * kSlots);
    Ints all = numbers(matrix(choice, kSlots));
    for (const Ints* more : {&selected, &kept, &agreed})
      all.insert(all.end(), more->begin(), more->end());
    seen.push_back(all);
    Ints again(recorded.size());
    record_choices(matrix(again, kSlots), matrix(choice, kSlots), matrix(selected, kSlots),
                   matrix(kept, kSlots));
    EXPECT_EQ(again, recorded);
  }
  EXPECT_EQ(seen[0], seen[1]);
}

}  // namespace
}  // namespace moe::test::replay_test
