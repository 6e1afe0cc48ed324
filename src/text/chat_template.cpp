// What is known of each family comes from the chat_template that its models are published with.
// Spaces around [INST], defaults and the like differ between models of one family, so they are read
// off the template itself.
#include "text/chat_template.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "core/error.h"
#include "text/chat.h"

namespace moe {
namespace {

using System = ChatTemplate::System;

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The string literals within the template's tags, with their escapes resolved.
std::vector<std::string> literals(std::string_view jinja) {
  std::vector<std::string> found;
  bool in_tag = false;
  for (size_t i = 0; i < jinja.size(); ++i) {
    const std::string_view two = jinja.substr(i, 2);
    if (two == "{{" || two == "{%") in_tag = true;
    else if (two == "}}" || two == "%}") in_tag = false;
    if (!in_tag || (jinja[i] != '\'' && jinja[i] != '"')) continue;
    const char quote = jinja[i];
    std::string text;
    for (++i; i < jinja.size() && jinja[i] != quote; ++i) {
      if (jinja[i] != '\\' || i + 1 == jinja.size()) {
        text += jinja[i];
        continue;
      }
      ++i;
      text += jinja[i] == 'n' ? '\n' : jinja[i] == 't' ? '\t' : jinja[i];
    }
    found.push_back(std::move(text));
  }
  return found;
}

// A system message written out in the template: "<|im_start|>system\nTEXT<|im_end|>".
std::string written_between(const std::vector<std::string>& texts, std::string_view open,
                            std::string_view close) {
  for (const std::string& text : texts) {
    const size_t begin = text.find(open);
    if (begin == std::string::npos) continue;
    const size_t end = text.find(close, begin + open.size());
    if (end != std::string::npos && end > begin + open.size())
      return text.substr(begin + open.size(), end - begin - open.size());
  }
  return "";
}

// The first literal with `part` in it, cut down to the part and the spaces beside it.
std::string with_spaces(const std::vector<std::string>& texts, const std::string& part,
                        const std::string& otherwise) {
  for (const std::string& text : texts) {
    const size_t at = text.find(part);
    if (at == std::string::npos) continue;
    const size_t end = at + part.size();
    return (at > 0 && text[at - 1] == ' ' ? " " : "") + part +
           (end < text.size() && text[end] == ' ' ? " " : "");
  }
  return otherwise;
}

bool has_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return has(text, part); });
}

struct Given {
  std::string_view jinja;
  const std::string &bos, &eos;
  std::string begin() const { return has(jinja, "bos_token") ? bos : ""; }
};

ChatTemplate make_chatml(const Given& given) {
  const auto opening = [](std::string_view role) {
    return fmt::format("{}{}\n", kMessageBegin, role);
  };
  const std::string close = fmt::format("{}\n", kMessageEnd);
  ChatTemplate t;
  t.begin = given.begin();
  t.system = {opening("system"), close};
  t.user = {opening("user"), close};
  t.reply_open = t.ask = opening("assistant");
  t.reply_end = kMessageEnd;
  t.reply_after = "\n";
  t.forbidden = {kMessageBegin, kMessageEnd};
  t.stops = {kMessageEnd, kMessageBegin};
  const std::vector<std::string> texts = literals(given.jinja);
  t.default_system = written_between(texts, t.system.open, kMessageEnd);
  t.drop_thoughts = has(given.jinja, "</think>");
  const std::string thinking = t.ask + "<think>\n";
  if (std::find(texts.begin(), texts.end(), thinking) != texts.end()) t.ask = thinking;
  return t;
}

std::string today() { return fmt::format("{:%d %b %Y}", fmt::localtime(std::time(nullptr))); }

ChatTemplate make_llama3(const Given& given) {
  const auto opening = [](std::string_view role) {
    return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role);
  };
  ChatTemplate t;
  t.begin = given.begin();
  t.system = {opening("system"), "<|eot_id|>"};
  t.user = {opening("user"), "<|eot_id|>"};
  t.reply_open = t.ask = opening("assistant");
  t.reply_end = "<|eot_id|>";
  t.trim = t.trim_reply = true;
  // Llama 3.1 and 3.2 say two dates before every system message; where the template cannot ask for
  // today's it has one of its own.
  if (has(given.jinja, "Cutting Knowledge Date: ")) {
    const std::string date = has(given.jinja, "strftime_now") ? today() : "26 Jul 2024";
    t.system.open += fmt::format("Cutting Knowledge Date: December 2023\nToday Date: {}\n\n", date);
    t.always_system = true;
  }
  t.forbidden = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  t.stops = {"<|eot_id|>", "<|start_header_id|>"};
  return t;
}

// All spaces as the template has them; a bos before each question.
ChatTemplate make_llama2(const Given& given) {
  ChatTemplate t;
  t.system_as = System::first_user;
  t.system = {"<<SYS>>\n", "\n<</SYS>>\n\n"};
  t.user = {given.bos + "[INST] ", " [/INST]"};
  t.reply_open = " ";
  t.reply_end = " " + given.eos;
  t.trim = t.trim_reply = true;
  t.forbidden = {"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"};
  t.stops = {"[INST]"};
  return t;
}

ChatTemplate make_mistral(const Given& given) {
  const std::vector<std::string> texts = literals(given.jinja);
  ChatTemplate t;
  t.begin = given.begin();
  t.user = {with_spaces(texts, "[INST]", "[INST] "), with_spaces(texts, "[/INST]", " [/INST]")};
  t.system = {"", "\n\n"};
  if (!has(given.jinja, "system_message")) t.system_as = System::none;
  else
    t.system_as =
        has(given.jinja, "loop.last and system_message") ? System::last_user : System::first_user;
  if (has_any(given.jinja, {"' ' + message", "\" \" + message"})) t.reply_open = " ";
  t.trim_reply =
      has_any(given.jinja, {"|trim + eos_token", "| trim + eos_token", "|trim) + eos_token",
                            "| trim) + eos_token", ".strip() + eos_token"});
  t.reply_end = given.eos;
  if (has_any(given.jinja, {"eos_token + ' '", "eos_token + \" \"", "eos_token ~ ' '"}))
    t.reply_after = " ";
  t.forbidden = {"[INST]", "[/INST]"};
  t.stops = {"[INST]"};
  return t;
}

ChatTemplate make_deepseek(const Given& given) {
  ChatTemplate t;
  t.begin = given.begin();
  t.system = {"", "\n\n"};
  t.user = {"User: ", "\n\n"};
  t.reply_open = "Assistant: ";
  t.reply_end = given.eos;
  t.ask = "Assistant:";
  t.forbidden = {"\n\nUser:", "\n\nAssistant:"};
  t.stops = {"\n\nUser:"};
  return t;
}

// OLMoE, OLMo and Tulu end only replies; Zephyr and TinyLlama end every message.
ChatTemplate make_tulu(const Given& given) {
  ChatTemplate t;
  t.begin = given.begin();
  const bool all_end =
      !has_any(given.jinja, {"+ '\\n' }}", "+ \"\\n\" }}", "+ '\\n'}}", "+ \"\\n\"}}"});
  const std::string close = all_end ? given.eos + "\n" : "\n";
  t.system = {"<|system|>\n", close};
  t.user = {"<|user|>\n", close};
  t.reply_open = t.ask = "<|assistant|>\n";
  t.reply_end = given.eos;
  t.reply_after = "\n";
  t.end_plain = !all_end;
  t.forbidden = {"<|system|>", "<|user|>", "<|assistant|>"};
  t.stops = {"<|user|>", "<|system|>"};
  return t;
}

struct Row {
  const char* name;
  std::vector<std::string_view> needs;    // all of these stand in the template
  std::vector<std::string_view> without;  // none of these does
  bool writes_eos;                        // so the tokenizer must name one
  ChatTemplate (*make)(const Given&);
};

// The first row that fits counts.
const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {"Llama 3", {"<|start_header_id|>", "<|eot_id|>"}, {}, false, make_llama3},
      {"ChatML", {"<|im_start|>", "<|im_end|>"}, {}, false, make_chatml},
      {"Llama 2", {"[INST]", "<<SYS>>"}, {}, true, make_llama2},
      {"Mistral", {"[INST]", "[/INST]"}, {"[SYSTEM_PROMPT]"}, true, make_mistral},
      {"Tulu", {"<|user|>", "<|assistant|>", "eos_token"}, {"<|end|>"}, true, make_tulu},
      {"DeepSeek", {"User: ", "Assistant: ", "Assistant:'"}, {}, true, make_deepseek},
      {"DeepSeek", {"User: ", "Assistant: ", "Assistant:\""}, {}, true, make_deepseek},
  };
  return table;
}

bool fits(const Row& row, std::string_view jinja) {
  const auto in = [&](std::string_view part) { return has(jinja, part); };
  return std::all_of(row.needs.begin(), row.needs.end(), in) &&
         std::none_of(row.without.begin(), row.without.end(), in);
}

std::string text_of(const Tokenizer& tokenizer, const std::optional<int32_t>& id) {
  return id ? tokenizer.piece(*id) : "";
}

}  // namespace

const ChatTemplate& chatml() {
  static const ChatTemplate made = [] {
    ChatTemplate t = make_chatml({"", "", ""});
    t.name = "ChatML";
    return t;
  }();
  return made;
}

std::vector<std::string> chat_template_names() {
  std::vector<std::string> names;
  for (const Row& row : rows())
    if (std::find(names.begin(), names.end(), row.name) == names.end())
      names.emplace_back(row.name);
  return names;
}

ChatTemplate recognize_template(std::string_view jinja, const std::string& bos,
                                const std::string& eos) {
  for (const Row& row : rows()) {
    if (!fits(row, jinja)) continue;
    if (row.writes_eos && eos.empty())
      fail(
          "the chat template of {} ends replies with the tokenizer's end token, and its tokenizer "
          "names none",
          row.name);
    ChatTemplate t = row.make({jinja, bos, eos});
    t.name = row.name;
    for (const std::string* mark : {&bos, &eos}) {
      const bool known =
          std::find(t.forbidden.begin(), t.forbidden.end(), *mark) != t.forbidden.end();
      if (!mark->empty() && !known && (row.writes_eos || !t.begin.empty()))
        t.forbidden.push_back(*mark);
    }
    if (row.writes_eos) t.stops.push_back(eos);
    return t;
  }
  fail("its chat template is not known; known are those of {}",
       fmt::join(chat_template_names(), ", "));
}

ChatTemplate chat_template(const Tokenizer& tokenizer) {
  const std::string jinja = chat_template_of(tokenizer);
  if (jinja.empty()) return chatml();
  return recognize_template(jinja, text_of(tokenizer, tokenizer.special().bos),
                            end_text(tokenizer));
}

}  // namespace moe
