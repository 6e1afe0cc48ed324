#include "text/literals.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "text/call_text.h"

namespace moe {
namespace {

constexpr std::string_view kGemmaQuote = "<|\"|>";

class LiteralReader {
 public:
  using Value = std::optional<OrderedJson>;

  LiteralReader(std::string_view text, bool gemma) : text_(text), gemma_(gemma) {}

  Value whole() {
    Value value = this->value(0);
    return value && at_end() ? std::move(value) : std::nullopt;
  }

  std::optional<std::vector<ToolCall>> calls() {
    std::vector<ToolCall> calls;
    const bool listed = take("[");
    while (!at_end() && !(listed && text_.substr(at_).starts_with(']'))) {
      auto one = call();
      if (!one) return std::nullopt;
      calls.push_back(std::move(*one));
      take(",");
    }
    if (calls.empty() || (listed && !take("]")) || !at_end()) return std::nullopt;
    return calls;
  }

 private:
  void skip_space() { at_ = std::min(text_.find_first_not_of(kReplySpace, at_), text_.size()); }
  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  bool take(std::string_view mark) {
    skip_space();
    if (!text_.substr(at_).starts_with(mark)) return false;
    at_ += mark.size();
    return true;
  }
  // What stands before the first of `ends`, or before the end.
  std::string_view take_word(std::string_view ends) {
    skip_space();
    const size_t end = std::min(text_.find_first_of(ends, at_), text_.size());
    const size_t begin = std::exchange(at_, end);
    return text_.substr(begin, end - begin);
  }

  std::optional<ToolCall> call() {
    const std::string name(take_word("()[]{},='\" \t\r\n"));
    if (name.empty() || !take("(")) return std::nullopt;
    OrderedJson arguments = OrderedJson::object();
    while (!take(")")) {
      const std::string key(take_word("()[]{},='\" \t\r\n"));
      if (key.empty() || !take("=") || !add(arguments, key, 0)) return std::nullopt;
      if (!take(",") && !text_.substr(at_).starts_with(')')) return std::nullopt;
    }
    return tool_call(name, one_line_json(arguments));
  }

  bool add(OrderedJson& object, const std::string& key, size_t depth) {
    if (object.size() >= kJsonMostOrderedKeys || object.contains(key)) return false;
    Value value = this->value(depth + 1);
    if (!value) return false;
    object.emplace(key, std::move(*value));
    return true;
  }

  Value value(size_t depth) {
    if (depth + 1 >= kJsonMaxDepth) return std::nullopt;
    if (const std::string_view quote = quote_here(); !quote.empty()) {
      std::optional<std::string> text = text_in(quote);
      return text ? Value(std::move(*text)) : std::nullopt;
    }
    if (take("{")) return object(depth);
    if (take("[")) return list("]", depth);
    if (!gemma_ && take("(")) return list(")", depth);
    return word();
  }

  Value list(std::string_view close, size_t depth) {
    OrderedJson out = OrderedJson::array();
    while (!take(close)) {
      Value element = value(depth + 1);
      if (!element) return std::nullopt;
      out.push_back(std::move(*element));
      if (!take(",") && !text_.substr(at_).starts_with(close)) return std::nullopt;
    }
    return out;
  }

  Value object(size_t depth) {
    OrderedJson out = OrderedJson::object();
    while (!take("}")) {
      const std::string_view quote = quote_here();
      const std::optional<std::string> key = quote.empty() && gemma_
                                                 ? std::string(trimmed_right(take_word(":,{}[]")))
                                                 : text_in(quote);
      if (!key || !take(":") || !add(out, *key, depth)) return std::nullopt;
      if (!take(",") && !text_.substr(at_).starts_with('}')) return std::nullopt;
    }
    return out;
  }

  // Words, numbers; Gemma's may be a text that has lost its quotes.
  Value word() {
    const std::string_view word = trimmed_right(take_word(",)]}"));
    if (word.empty()) return std::nullopt;
    if (word == "True") return true;
    if (word == "False") return false;
    if (word == "None") return nullptr;
    if (Value json = json_of(word); json && !json->is_structured() && !json->is_string())
      return json;
    return gemma_ ? Value(std::string(word)) : std::nullopt;
  }

  // What opens a text here; empty where none begins.
  std::string_view quote_here() {
    skip_space();
    const std::string_view rest = text_.substr(at_);
    if (gemma_) return rest.starts_with(kGemmaQuote) ? kGemmaQuote : std::string_view();
    for (const std::string_view quote : {"\"\"\"", "'''", "\"", "'"})
      if (rest.starts_with(quote)) return quote;
    return {};
  }

  // Nothing where no text begins, or it does not end.
  std::optional<std::string> text_in(std::string_view quote) {
    if (quote.empty()) return std::nullopt;
    at_ += quote.size();
    std::string out;
    while (at_ < text_.size()) {
      if (text_.substr(at_).starts_with(quote) && (quote.size() > 1 || ends_behind(at_ + 1))) {
        at_ += quote.size();
        return out;
      }
      if (!gemma_ && text_[at_] == '\\' && at_ + 1 < text_.size()) take_escape(out);
      else out += text_[at_++];
    }
    return std::nullopt;
  }

  bool ends_behind(size_t at) const {
    const size_t next = text_.find_first_not_of(kReplySpace, at);
    return next == std::string_view::npos ||
           std::string_view(",)]}:").find(text_[next]) != std::string_view::npos;
  }

  // A backslash and what it stands with; one that means nothing stays.
  void take_escape(std::string& out) {
    constexpr std::string_view kLetters = "ntrbf\\'\"/", kMeant = "\n\t\r\b\f\\'\"/";
    const char letter = text_[at_ + 1];
    if (const size_t known = kLetters.find(letter); known != std::string_view::npos) {
      out += kMeant[known];
      at_ += 2;
      return;
    }
    // \u as in JSON, where two of them may be one character
    for (const size_t size : {size_t{12}, size_t{6}}) {
      const std::string_view units = text_.substr(at_, size);
      if (letter != 'u' || units.size() != size ||
          (size == 12 && !units.substr(6).starts_with("\\u")))
        continue;
      if (const auto json = json_of('"' + std::string(units) + '"')) {
        out += json->get_ref<const std::string&>();
        at_ += size;
        return;
      }
    }
    out += text_[at_++];
  }

  std::string_view text_;
  bool gemma_;
  size_t at_ = 0;
};

}  // namespace

std::optional<OrderedJson> python_value(std::string_view text) {
  return LiteralReader(text, false).whole();
}

std::optional<std::vector<ToolCall>> python_calls(std::string_view text) {
  return LiteralReader(text, false).calls();
}

std::optional<OrderedJson> gemma_object(std::string_view text) {
  text = trimmed(text);
  if (!text.starts_with('{')) return std::nullopt;
  return LiteralReader(text, true).whole();
}

}  // namespace moe
