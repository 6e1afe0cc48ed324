// moe.cpp from C++20: the C interface of moe.h with owners, strings and exceptions. Header only;
// links nothing but libmoe.
//
//   moe::train({{"data", "book.txt"}, {"out", "out/book"}, {"preset", "tiny"}, {"steps", 200}});
//   moe::Model model = moe::Model::load("out/book");
//   std::cout << model.generate("Once ", {{"tokens", 100}, {"seed", 1}}).text;
//
// Options have the names of the command line ("top_k" or "top-k"); moe <verb> --help lists them.
// What fails throws moe::Error, whose what() is one line: what, where, what to do. A Model, and a
// Session, is used by one thread at a time; different ones at the same time, sessions of one model
// among them.
#pragma once

#include <moe/moe.h>

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe {
inline namespace api1 {

class Error : public std::runtime_error {
 public:
  Error(const std::string& message, moe_status status)
      : std::runtime_error(message), status_(status) {}
  // MOE_USAGE: what was asked for has no meaning. MOE_FAILED: it has, and went wrong.
  moe_status status() const noexcept { return status_; }

 private:
  moe_status status_;
};

namespace detail {

inline void check(moe_status status) {
  if (status != MOE_OK) throw Error(moe_last_error(), status);
}

// What the library hands out, and gives back when it is no longer needed.
template <class T>
class Received {
 public:
  T** out() { return &pointer_; }
  ~Received() { moe_free(pointer_); }
  Received() = default;
  Received(const Received&) = delete;
  Received& operator=(const Received&) = delete;
  T* get() const { return pointer_; }

 private:
  T* pointer_ = nullptr;
};

inline std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
      continue;
    }
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
    out += escape;
  }
  return out + '"';
}

// Where the value of a key of one of the library's replies begins. In them a quote inside a string
// has a backslash before it, so the key cannot be part of a text.
inline const char* value_of(const std::string& json, const char* key) {
  const std::string mark = std::string("\"") + key + "\":";
  const size_t at = json.find(mark);
  return at == std::string::npos ? nullptr : json.c_str() + at + mark.size();
}
inline std::string word(const std::string& json, const char* key) {
  const char* value = value_of(json, key);
  if (value == nullptr || *value != '"') return "";
  const std::string_view rest(value + 1);
  return std::string(rest.substr(0, rest.find('"')));
}

// Runs a callback for C: what it throws waits here until the library has returned.
struct Caught {
  std::exception_ptr exception;
  template <class F>
  int run(F&& callback) noexcept {
    try {
      return callback() ? 0 : 1;
    } catch (...) {
      exception = std::current_exception();
      return 1;
    }
  }
  void rethrow() const {
    if (exception) std::rethrow_exception(exception);
  }
};

}  // namespace detail

// The number under a key of what the library replies, for who has no JSON library: number(metrics,
// "ce"). The first one where there are several; 0 where none is.
inline double number(const std::string& json, const char* key) {
  const char* value = detail::value_of(json, key);
  double x = 0;
  if (value != nullptr) std::from_chars(value, json.c_str() + json.size(), x);
  return x;
}

// One option: a name and a truth, a number, a text or a list of texts.
class Option {
 public:
  Option(std::string_view name, bool value) : Option(name, value ? "true" : "false", Raw{}) {}
  Option(std::string_view name, std::integral auto value)
      : Option(name, std::to_string(value), Raw{}) {}
  Option(std::string_view name, std::floating_point auto value)
      : Option(name, shortest(static_cast<double>(value)), Raw{}) {}
  Option(std::string_view name, const char* value) : Option(name, detail::quoted(value), Raw{}) {}
  Option(std::string_view name, std::string_view value)
      : Option(name, detail::quoted(value), Raw{}) {}
  Option(std::string_view name, const std::string& value)
      : Option(name, detail::quoted(value), Raw{}) {}
  Option(std::string_view name, const std::vector<std::string>& values)
      : Option(name, list(values), Raw{}) {}

  const std::string& json() const { return json_; }

 private:
  struct Raw {};
  Option(std::string_view name, const std::string& value, Raw)
      : json_(detail::quoted(name) + ":" + value) {}
  static std::string shortest(double x) {
    if (!std::isfinite(x))
      throw Error("an option is " + std::string(std::isnan(x) ? "not a number" : "infinite") +
                      "; JSON has finite numbers only",
                  MOE_USAGE);
    char digits[32];
    return std::string(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
  }
  static std::string list(const std::vector<std::string>& values) {
    std::string out = "[";
    for (const std::string& value : values)
      out.append(out.size() > 1 ? "," : "").append(detail::quoted(value));
    return out + "]";
  }

  std::string json_;
};

// {{"steps", 200}, {"dtype", "bf16"}}, or a JSON object as it is; more can be added to both.
class Options {
 public:
  Options() = default;
  Options(std::initializer_list<Option> options) {
    for (const Option& option : options) add(option);
  }
  static Options from_json(std::string object) {
    Options options;
    options.object_ = std::move(object);
    return options;
  }
  Options& add(const Option& option) {
    constexpr const char* space = " \t\r\n";
    const size_t end = object_.find_last_not_of(space);
    if (end == std::string::npos || object_[end] != '}')
      throw Error("an option can only be added to a JSON object {...}", MOE_USAGE);
    const size_t before = end == 0 ? std::string::npos : object_.find_last_not_of(space, end - 1);
    const bool is_first = before != std::string::npos && object_[before] == '{';
    object_.replace(is_first ? before + 1 : end, std::string::npos,
                    (is_first ? "" : ",") + option.json() + "}");
    return *this;
  }
  const std::string& json() const { return object_; }

 private:
  std::string object_ = "{}";
};

struct Generated {
  std::string text;    // without the prompt
  int64_t tokens = 0;  // of it
  int64_t prompt_tokens = 0;
  std::string finish;    // "length", "stop" or "interrupted"
  int64_t proposed = 0,  // tokens that were guessed ("draft", "prompt_lookup"), and those of them
      accepted = 0;      // that were right
};

struct Score {
  double nats_per_token = 0, perplexity = 0, bits_per_byte = 0;
  int64_t tokens = 0, windows = 0, window = 0;
  std::vector<float> logprobs;  // of each id given those before it in its window; NaN for the first
                                // of each window and for the remainder
  std::string json;             // what `moe score --json` prints
};

// The experts that each token was sent to, in choice order.
struct Routing {
  int64_t layers = 0, tokens = 0, slots = 0;  // MoE layers
  std::vector<int32_t> experts;               // [layers, tokens, slots] -1: not sent
  std::vector<float> weights;                 // [layers, tokens, slots]

  int32_t expert(int64_t layer, int64_t token, int64_t slot) const {
    return experts[static_cast<size_t>((layer * tokens + token) * slots + slot)];
  }
  float weight(int64_t layer, int64_t token, int64_t slot) const {
    return weights[static_cast<size_t>((layer * tokens + token) * slots + slot)];
  }
};

namespace detail {

// A call that writes a text: `start` is given the callback for C, its user pointer and where the
// JSON goes.
template <class Start>
Generated generated(const std::function<bool(std::string_view)>& on_text, Start&& start) {
  struct Call : Caught {
    const std::function<bool(std::string_view)>* on_text;
    std::string text;
  } call;
  call.on_text = &on_text;
  const moe_on_text hear = [](void* user, const char* text, size_t bytes) {
    Call& c = *static_cast<Call*>(user);
    return c.run([&] {
      c.text.append(text, bytes);
      return !*c.on_text || (*c.on_text)({text, bytes});
    });
  };
  Received<char> json;
  const moe_status status = start(hear, &call, json.out());
  call.rethrow();
  check(status);
  const std::string reply = json.get();
  return {std::move(call.text),
          static_cast<int64_t>(number(reply, "tokens")),
          static_cast<int64_t>(number(reply, "prompt_tokens")),
          word(reply, "finish"),
          static_cast<int64_t>(number(reply, "proposed")),
          static_cast<int64_t>(number(reply, "accepted"))};
}

}  // namespace detail

// A text under way: what was read and written of it is not read again. Made by Model::session();
// keeps the weights, so the Model may go before it.
class Session {
 public:
  // Adds ids to the text. Returns logits [rows, vocab]: of the id after each of the last `rows` of
  // them.
  std::vector<float> prefill(std::span<const int32_t> ids, size_t rows = 1) {
    std::vector<float> logits(rows * static_cast<size_t>(vocab_));
    detail::check(moe_session_prefill(get(), ids.data(), ids.size(), rows, logits.data()));
    return logits;
  }
  // Adds a prompt, which may be empty where there is a text, and goes on from there as
  // Model::generate does. What was written belongs to the text from then on.
  Generated generate(std::string_view prompt = {}, const Options& options = {},
                     const std::function<bool(std::string_view)>& on_text = {}) {
    return detail::generated(on_text, [&](moe_on_text hear, void* user, char** json) {
      return moe_session_generate(get(), prompt.data(), prompt.size(), options.json().c_str(), hear,
                                  user, json);
    });
  }
  size_t length() const { return moe_session_length(get()); }  // ids that it holds
  // Drops what stands behind the first `length` ids.
  void truncate(size_t length) { detail::check(moe_session_truncate(get(), length)); }

  moe_session* get() const { return session_.get(); }  // for the C interface

 private:
  friend class Model;
  struct Close {
    void operator()(moe_session* session) const noexcept { moe_session_close(session); }
  };
  Session(moe_session* session, int64_t vocab) : session_(session), vocab_(vocab) {}

  std::unique_ptr<moe_session, Close> session_;
  int64_t vocab_;
};

// Weights and a tokenizer. Owns them; can be moved, not copied.
class Model {
 public:
  // Options: "threads", "dtype" of the products.
  static Model load(const std::string& folder, const Options& options = {}) {
    moe_model* model = nullptr;
    detail::check(moe_load(&model, folder.c_str(), options.json().c_str()));
    return Model(model);
  }
  // Options: "dtype" of the file.
  void save(const std::string& folder, const Options& options = {}) const {
    detail::check(moe_save(get(), folder.c_str(), options.json().c_str()));
  }

  // What `moe inspect MODEL --json` prints.
  std::string inspect() const {
    detail::Received<char> json;
    detail::check(moe_inspect(get(), json.out()));
    return json.get();
  }
  // "vocab", "context", "width", "layers", "moe_layers", "experts", "slots".
  int64_t size(const char* name) const { return moe_size(get(), name); }

  std::vector<int32_t> encode(std::string_view text) const {
    detail::Received<int32_t> ids;
    size_t count = 0;
    detail::check(moe_encode(get(), text.data(), text.size(), ids.out(), &count));
    return std::vector<int32_t>(ids.get(), ids.get() + count);
  }
  std::string decode(std::span<const int32_t> ids) const {
    detail::Received<char> text;
    size_t bytes = 0;
    detail::check(moe_decode(get(), ids.data(), ids.size(), text.out(), &bytes));
    return std::string(text.get(), bytes);
  }

  // Options: those of `moe generate`. on_text gets whole characters as soon as they are certain;
  // false ends the generation.
  Generated generate(std::string_view prompt, const Options& options = {},
                     const std::function<bool(std::string_view)>& on_text = {}) {
    return detail::generated(on_text, [&](moe_on_text hear, void* user, char** json) {
      return moe_generate(get(), prompt.data(), prompt.size(), options.json().c_str(), hear, user,
                          json);
    });
  }
  // Options: "capacity", "threads", and "cache_dtype", "routing", "top_k_experts", "draft",
  // "draft_tokens", "draft_min_p" of `moe generate`.
  Session session(const Options& options = {}) {
    moe_session* session = nullptr;
    detail::check(moe_session_open(&session, get(), options.json().c_str()));
    return Session(session, size("vocab"));
  }

  // Options: "window", "windows", "routing".
  Score score(std::span<const int32_t> ids, const Options& options = {}) {
    Score score;
    score.logprobs.resize(ids.size());
    detail::Received<char> json;
    detail::check(moe_score(get(), ids.data(), ids.size(), options.json().c_str(),
                            score.logprobs.data(), json.out()));
    score.json = json.get();
    score.nats_per_token = number(score.json, "nats_per_token");
    score.perplexity = number(score.json, "perplexity");
    score.bits_per_byte = number(score.json, "bits_per_byte");
    score.tokens = static_cast<int64_t>(number(score.json, "tokens"));
    score.windows = static_cast<int64_t>(number(score.json, "windows"));
    score.window = static_cast<int64_t>(number(score.json, "window"));
    return score;
  }
  Score score(std::string_view text, const Options& options = {}) {
    return score(encode(text), options);
  }

  // [ids, vocab]: of the id after each of one sequence.
  std::vector<float> logits(std::span<const int32_t> ids) {
    std::vector<float> out(get() == nullptr ? 0 : ids.size() * static_cast<size_t>(size("vocab")));
    detail::check(moe_logits(get(), ids.data(), ids.size(), out.data()));
    return out;
  }

  // Of one sequence, routed as in an evaluation.
  Routing routing(std::span<const int32_t> ids) {
    Routing r{size("moe_layers"), static_cast<int64_t>(ids.size()), size("slots"), {}, {}};
    r.experts.resize(static_cast<size_t>(r.layers * r.tokens * r.slots));
    r.weights.resize(r.experts.size());
    detail::check(moe_routing(get(), ids.data(), ids.size(), r.experts.data(), r.weights.data()));
    return r;
  }

  moe_model* get() const { return model_.get(); }  // for the C interface

 private:
  struct Close {
    void operator()(moe_model* model) const noexcept { moe_close(model); }
  };
  explicit Model(moe_model* model) : model_(model) {}

  std::unique_ptr<moe_model, Close> model_;
};

// Options: those of `moe train`, "data" and "out" among them. on_step gets each step's line of
// metrics.jsonl; false saves and ends the run. Returns what `moe train --json` prints.
inline std::string train(const Options& options,
                         const std::function<bool(const std::string&)>& on_step = {}) {
  struct Call : detail::Caught {
    const std::function<bool(const std::string&)>* on_step;
  } call;
  call.on_step = &on_step;
  const moe_on_step hear = [](void* user, const char* json) {
    Call& c = *static_cast<Call*>(user);
    return c.run([&] { return (*c.on_step)(json); });
  };
  detail::Received<char> json;
  const moe_status status =
      moe_train(options.json().c_str(), on_step ? hear : nullptr, &call, json.out());
  call.rethrow();
  detail::check(status);
  return json.get();
}

// A recipe worked on given numbers: a JSON object as `moe route --logits` reads it, with "recipe",
// "top_k" and the like in it.
inline std::string route(const std::string& input) {
  detail::Received<char> json;
  detail::check(moe_route(input.c_str(), json.out()));
  return json.get();
}

// What `moe recipes --json` prints.
inline std::string recipes() {
  detail::Received<char> json;
  detail::check(moe_recipes(json.out()));
  return json.get();
}

inline std::string version() { return moe_version(); }

}  // namespace api1
}  // namespace moe
