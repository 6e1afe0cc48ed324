// Where scopes begin and end.
#include "moe/stages/scope.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace moe::test::scope_test {
namespace {

using Bounds = std::vector<int64_t>;
using Kind = Scope::Kind;

const Bounds kSequences = {0, 3, 4, 9};

TEST(Scope, MicroBatchIsOneScopeWhateverTheSequences) {
  EXPECT_EQ(scope_bounds({}, kSequences, 9), (Bounds{0, 9}));
  EXPECT_EQ(scope_bounds({}, {}, 9), (Bounds{0, 9}));
}

TEST(Scope, SequencesAreTheirBoundsAndOneWithoutBounds) {
  EXPECT_EQ(scope_bounds({Kind::sequence}, kSequences, 9), kSequences);
  EXPECT_EQ(scope_bounds({Kind::sequence}, {}, 9), (Bounds{0, 9}));
  EXPECT_THROW(scope_bounds({Kind::sequence}, kSequences, 10), Error);
  EXPECT_THROW(scope_bounds({Kind::sequence}, Bounds{1, 9}, 9), Error);
}

TEST(Scope, GroupsBeginAtTheFirstTokenAndTheLastMayBeShorter) {
  EXPECT_EQ(scope_bounds({Kind::group, 4}, kSequences, 9), (Bounds{0, 4, 8, 9}));
  EXPECT_EQ(scope_bounds({Kind::group, 3}, {}, 9), (Bounds{0, 3, 6, 9}));
  EXPECT_EQ(scope_bounds({Kind::group, 100}, {}, 9), (Bounds{0, 9}));
  EXPECT_EQ(scope_bounds({Kind::group, 1}, {}, 2), (Bounds{0, 1, 2}));
  EXPECT_THROW(scope_bounds({Kind::group, 0}, {}, 9), Error);
}

TEST(Scope, NoTokensAreOneEmptyScope) {
  for (Kind kind : {Kind::micro_batch, Kind::sequence, Kind::group})
    EXPECT_EQ(scope_bounds({kind, 4}, {}, 0), (Bounds{0, 0}));
}

}  // namespace
}  // namespace moe::test::scope_test
