// Rows between processes: what experts here make of everybody's tokens is what one process would
// make of its own.
#include "moe/exchange.h"

#include <map>

#include "support/check.h"
#include "support/processes.h"

namespace moe::test::exchange_test {
namespace {

constexpr int64_t kTokens = 23, kChosen = 3, kWidth = 5;

// What a process routes: its own tokens, to E experts; with few tokens to some of them only.
struct Routed {
  moe::Run run{1};
  Tensor x;  // [N,D]
  RoutingPlan plan;

  Routed(int rank, int64_t tokens, int64_t experts) {
    const RngKey key = RngKey::from_seed(static_cast<uint64_t>(rank) + 1);
    x = draw(run.saved, DType::f32, {tokens, kWidth}, static_cast<uint64_t>(rank) + 100);
    Tensor choice = run.saved.alloc(DType::i32, {tokens, kChosen}),
           kept = run.saved.alloc(DType::i32, {tokens, kChosen});
    const Tensor weight = draw(run.saved, DType::f32, {tokens, kChosen}, 7);
    for (int64_t i = 0; i < tokens * kChosen; ++i) {
      const auto first = static_cast<int64_t>(
          uniform_index(key, static_cast<uint64_t>(i / kChosen), static_cast<uint64_t>(experts)));
      choice.as<int32_t>()[i] = static_cast<int32_t>((first + i % kChosen) % experts);
      kept.as<int32_t>()[i] = uniform(key.fold(1), static_cast<uint64_t>(i)) < 0.8f;
    }
    plan = ops::make_plan(run, choice, kept, weight, experts);
  }
};

// Of expert `e`, counted among all.
float made_of(float x, float weight, int64_t e) { return weight * x + static_cast<float>(e); }

void check_visit(const comm::Group& group, int64_t tokens, int64_t experts) {
  Routed r(group.rank, tokens, experts);
  const Span here = partition(experts, group.rank, group.size);
  const Rows rows = dispatch(r.run, r.x, r.plan, group);
  ASSERT_EQ(std::ssize(rows.offsets), here.end - here.begin + 1);
  const int64_t count = rows.offsets.back();
  ASSERT_EQ(rows.x.rows(), count);
  const Tensor made = r.run.scratch.alloc(DType::f32, {count, kWidth});
  std::map<int64_t, int> pieces_of;  // of an expert that has rows
  int64_t seen = 0, pieces = 0;
  int meanwhile = 0;
  const Tensor back = visit_experts(
      r.run, made, rows.x.x, r.x, r.plan, rows, [&] { ++meanwhile; },
      [&](const Piece& piece) {
        EXPECT_EQ(meanwhile, 1) << "before the first piece";
        EXPECT_EQ(piece.part.begin, seen);
        seen = piece.part.end;
        ++pieces;
        for (int64_t e = 0; e + 1 < std::ssize(piece.rows.offsets); ++e) {
          const auto i = static_cast<size_t>(e);
          if (piece.rows.offsets[i] < piece.rows.offsets[i + 1]) ++pieces_of[e];
          for (int64_t row = piece.rows.offsets[i]; row < piece.rows.offsets[i + 1]; ++row)
            for (int64_t c = 0; c < kWidth; ++c)
              made.row<float>(piece.part.begin + row)[c] =
                  made_of(piece.x.x.row<float>(piece.x.row[static_cast<size_t>(row)])[c],
                          piece.rows.weight.as<float>()[row], here.begin + e);
        }
      });
  EXPECT_EQ(seen, count);
  if (group.size > 1 && experts >= 4 * group.size && tokens > 4)
    EXPECT_GT(pieces, 1) << "nothing would be hidden";
  for (const auto& [expert, times] : pieces_of) EXPECT_EQ(times, 1) << "expert " << expert;
  ASSERT_EQ(back.rows(), r.plan.rows());
  const Tensor weights = return_rows(r.run, rows.weight, r.plan, rows);
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t row = r.plan.offsets[static_cast<size_t>(e)];
         row < r.plan.offsets[static_cast<size_t>(e) + 1]; ++row) {
      const float weight = r.plan.weight.as<float>()[row];
      EXPECT_EQ(weights.as<float>()[row], weight);
      for (int64_t c = 0; c < kWidth; ++c)
        ASSERT_EQ(back.row<float>(row)[c],
                  made_of(r.x.row<float>(r.plan.token[static_cast<size_t>(row)])[c], weight, e))
            << "expert " << e << ", row " << row;
    }
}

TEST(Exchange, ExpertsElsewhereMakeWhatTheyWouldMakeHere) {
  for (const int processes : {1, 2, 3, 4})
    for (const int64_t experts : {4, 7, 16})
      run_processes(processes, [&](const comm::Group& group) {
        check_visit(group, kTokens, experts);
        check_visit(group, 2 + group.rank, experts);  // some experts see nobody
      });
}

// Only what the experts make is sent.
TEST(Exchange, ProcessesWithTheSameTokensShareTheirRows) {
  run_processes(3, [](const comm::Group& group) {
    Routed r(0, kTokens, 8);
    const Span here = partition(8, group.rank, group.size);
    const Rows rows = dispatch(r.run, r.x, r.plan, group, true);
    const Tensor made = r.run.scratch.alloc(DType::f32, {rows.x.rows(), kWidth});
    const int64_t before = group.link->traffic().sent;
    const Tensor back =
        visit_experts(r.run, made, rows.x.x, r.x, r.plan, rows, {}, [&](const Piece& piece) {
          EXPECT_EQ(piece.part.end, rows.x.rows());
          for (int64_t row = 0; row < rows.x.rows(); ++row)
            for (int64_t c = 0; c < kWidth; ++c)
              made.row<float>(row)[c] =
                  rows.x.x.row<float>(rows.x.row[static_cast<size_t>(row)])[c];
        });
    EXPECT_EQ(group.link->traffic().sent - before, 2 * made.bytes());
    EXPECT_EQ(rows.x.rows(), r.plan.offsets[static_cast<size_t>(here.end)] -
                                 r.plan.offsets[static_cast<size_t>(here.begin)]);
    for (int64_t row = 0; row < r.plan.rows(); ++row)
      for (int64_t c = 0; c < kWidth; ++c)
        EXPECT_EQ(back.row<float>(row)[c],
                  r.x.row<float>(r.plan.token[static_cast<size_t>(row)])[c]);
  });
}

}  // namespace
}  // namespace moe::test::exchange_test
