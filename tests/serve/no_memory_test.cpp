// Memory that is refused is answered with 503, wherever on a request's way that happens, and the
// server goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <new>
#include <nlohmann/json.hpp>

#include "serve/api.h"
#include "support/served.h"

namespace moe::test::no_memory_test {
namespace {

// Bytes; where memory is short there is none for a ! to be read or written.
class Short : public Tokenizer {
 public:
  explicit Short(const std::atomic<bool>& is_short) : is_short_(is_short) {}
  int64_t vocab_size() const override { return 256; }
  std::string spec() const override { return "short"; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c));
      check(ids.back());
    }
    return ids;
  }
  std::string piece(int32_t id) const override {
    check(id);
    return std::string(1, static_cast<char>(id));
  }
  std::string to_json() const override { return ""; }

 private:
  void check(int32_t id) const {
    if (is_short_ && id == '!') throw std::bad_alloc();
  }
  const std::atomic<bool>& is_short_;
};

class NoMemory : public ::testing::Test {
 protected:
  NoMemory() {
    loaded_.model = fresh(ServedModel::served_config());
    loaded_.tokenizer = std::make_unique<Short>(is_short_);
    serve::ServeOptions options;
    options.port = 0;
    server_ =
        std::make_unique<serve::Server>(loaded_, run_, SessionOptions{}, "tiny", 4096, options);
    thread_ = std::thread([this] { server_->run(); });
  }
  ~NoMemory() override {
    server_->drain(20);
    thread_.join();
  }
  HttpReply complete(const Json& more) {
    const Json body = with({{"prompt", "Once"}, {"max_tokens", 4}}, more);
    return HttpClient(server_->port()).ask("POST", "/v1/completions", body.dump());
  }
  static void expect_refused(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 503) << reply.body;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["code"], "out_of_memory");
    EXPECT_EQ(error["type"], "service_unavailable_error");
  }

  std::atomic<bool> is_short_{false};
  LoadedModel loaded_;
  moe::Run run_{2};
  std::unique_ptr<serve::Server> server_;
  std::thread thread_;
};

TEST_F(NoMemory, ForAPrompt) {
  is_short_ = true;
  expect_refused(complete({{"prompt", "Once!"}}));
  // The reply is drawn, with a seed of its own each time: it might hold a ! too.
  const Json quietly = {{"logit_bias", {{"33", -100}}}};
  EXPECT_EQ(complete(quietly).status, 200);
}

TEST_F(NoMemory, ForAReply) {
  const Json shouts = {{"logit_bias", {{"33", 100}}}};
  EXPECT_EQ(Json::parse(complete(shouts).body)["choices"][0]["text"], "!!!!");
  is_short_ = true;
  expect_refused(complete(shouts));
  const HttpReply streamed = complete(with(shouts, {{"stream", true}}));
  EXPECT_NE(streamed.body.find("out_of_memory"), std::string::npos) << streamed.body;
  is_short_ = false;
  EXPECT_EQ(Json::parse(complete(shouts).body)["choices"][0]["text"], "!!!!");
}

TEST(WorkQueue, GoesOnBehindWorkThatThrows) {
  std::promise<void> done;
  serve::WorkQueue queue;
  queue.add([] { throw std::bad_alloc(); });
  queue.add([&] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

}  // namespace
}  // namespace moe::test::no_memory_test
