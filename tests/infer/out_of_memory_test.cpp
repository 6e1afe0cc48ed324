// Where memory is refused in the middle of a step, the text that it was for ends and says so:
// step() throws nothing, every text is told its end once, and no room in the cache is lost.
#include <gtest/gtest.h>

#include <utility>

#include "infer/batcher.h"
#include "support/refused_memory.h"
#include "support/tiny_model.h"

namespace moe::test::out_of_memory_test {
namespace {

// What a test notes itself is not refused memory.
class Unrefused {
 public:
  Unrefused() : before_(std::exchange(allocations_left, -1)) {}
  ~Unrefused() { allocations_left = before_; }
  Unrefused(const Unrefused&) = delete;
  Unrefused& operator=(const Unrefused&) = delete;

 private:
  int64_t before_;
};

struct Outcome {
  std::vector<int32_t> ids;
  int ends = 0;
  bool failed = false;
};

class OutOfMemory : public ::testing::Test {
 protected:
  OutOfMemory() {
    ModelConfig config = plain_config();
    config.context = 200;
    config.init.std = 0.3f;
    model_ = fresh(config);
    runner_ = std::make_unique<ModelRunner>(*model_, run_, 512);
  }

  TextRequest request(std::vector<int32_t> prompt, Outcome& out) const {
    TextRequest r;
    r.prompt = std::move(prompt);
    r.options.max_tokens = 5;
    r.options.sampler.temperature = 0;
    r.client = "a client whose name takes an allocation";
    r.on_progress = [&out](const TextProgress& p) {
      out.ids.insert(out.ids.end(), p.ids.begin(), p.ids.end());
    };
    r.on_end = [&out](const Generated&, const std::exception_ptr& error) {
      const Unrefused noted;
      ++out.ends;
      out.failed = error != nullptr;
    };
    return r;
  }

  // What comes of three texts, the last of which begins as the first did and comes later; the
  // n-th allocation on the way is refused, below 0: none. Whether one was.
  bool write(int64_t n, std::vector<Outcome>& out, int64_t parallel = 2) {
    out.assign(3, {});
    std::vector<int32_t> first(70, 1), second(20, 2);
    std::vector<TextRequest> requests;
    requests.push_back(request(first, out[0]));
    requests.push_back(request(second, out[1]));
    requests.push_back(request(first, out[2]));
    Batcher batcher(*runner_, *tokenizer_, parallel, 200);
    allocations_left = n;
    for (TextRequest& r : requests) batcher.add(std::move(r));
    while (batcher.step()) {
    }
    return std::exchange(allocations_left, -1) < 0 && n >= 0;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer("bytes");
  moe::Run run_{1};
  std::unique_ptr<ModelRunner> runner_;
};

TEST_F(OutOfMemory, ATextEndsAndNothingElse) {
  const int64_t room = runner_->cache().available();
  std::vector<Outcome> whole, out;
  // What is made once in a process, for steps of these sizes, is there from now on.
  write(-1, out, 1);
  write(-1, whole);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i].ids, whole[i].ids);
  ASSERT_EQ(whole[0].ids.size(), 5u);
  int64_t n = 0, failures = 0;
  for (bool refused = true; refused; n += 1 + n / 50) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 100000);
    try {
      refused = write(n, out);
    } catch (const std::bad_alloc&) {
      allocations_left = -1;
      FAIL() << "it came out of the batcher";
    }
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i].ends, 1) << i;
      failures += out[i].failed ? 1 : 0;
      if (!out[i].failed) EXPECT_EQ(out[i].ids, whole[i].ids) << i;
    }
    EXPECT_EQ(runner_->cache().available(), room);
  }
  EXPECT_GT(failures, 20) << "nothing was refused where memory is asked for";
}

}  // namespace
}  // namespace moe::test::out_of_memory_test
