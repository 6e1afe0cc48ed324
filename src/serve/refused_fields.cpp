#include "serve/refused_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/nearest.h"
#include "serve/api_error.h"

namespace moe::serve {
namespace {

constexpr const char* kFormat = "say by response_format what the reply has to be";
constexpr const char* kBiases = "say by logit_bias which tokens may come";

// vLLM's (vllm/entrypoints/openai/protocol.py) and llama-server's.
constexpr RefusedField kOfOthers[] = {
    {.name = "guided_json", .why = kFormat, .full_only = true},
    {"guided_regex", kFormat},
    {"guided_choice", kFormat},
    {"guided_grammar", kFormat},
    {.name = "structured_outputs", .why = kFormat, .full_only = true},
    {"grammar", kFormat},
    {"json_schema", kFormat},
    {"allowed_token_ids", kBiases},
    {"bad_words", kBiases},
    {"use_beam_search", "texts are drawn token by token; temperature 0 takes the likeliest"},
    {"truncate_prompt_tokens", "a prompt is read whole, or refused"},
};

constexpr RefusedField kOfCompletions[] = {{"suffix", "the model only continues a text"}};

// src/openai/types/chat in openai/openai-python, and vLLM's.
constexpr RefusedField kOfChats[] = {
    {"functions", "it is the older form of tools; send tools"},
    {"function_call", "it is the older form of tool_choice; send tools and tool_choice", "none"},
    {"chat_template", "a dialogue is written by the model's own template"},
    {"audio", "this server makes text only"},
    {"web_search_options", "nothing is searched here; offer a tool that searches"},
};

template <class AnyJson>
bool asks_for_nothing(const AnyJson& value, const RefusedField& field) {
  return value.is_null() || value == false || value == 0 || value == "" || value == field.nothing ||
         (value.is_array() && value.empty()) ||
         (field.full_only && value.is_object() && value.empty());
}

template <class AnyJson>
void refuse_any(const AnyJson& request, std::span<const RefusedField> refused) {
  for (const RefusedField& field : refused)
    if (const auto given = request.find(field.name);
        given != request.end() && !asks_for_nothing(*given, field))
      throw ApiError{400, fmt::format("{} is not supported: {}", field.name, field.why),
                     field.name};
}

bool is_near(const std::string& name, const std::string& known) {
  constexpr size_t kShortest = 6;
  if (std::min(name.size(), known.size()) < kShortest) return false;
  if (std::max(name.size(), known.size()) - std::min(name.size(), known.size()) > 1) return false;
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return edit_distance(lower, known) <= 1;
}

}  // namespace

void refuse_fields(const Json& request, std::span<const RefusedField> refused) {
  refuse_any(request, refused);
}

void refuse_fields(const OrderedJson& request, std::span<const RefusedField> refused) {
  refuse_any(request, refused);
}

void refuse_misspelled(std::span<const std::string> given, std::span<const std::string> known) {
  const auto is_one_of = [](std::string_view name, std::span<const std::string> names) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const std::string& name : given)
    for (const std::string& meant : known)
      if (is_near(name, meant) && !is_one_of(name, known) && !is_one_of(meant, given))
        throw ApiError{
            400, fmt::format("{} is not known here; did you mean \"{}\"?", printable(name), meant),
            printable(name)};
}

std::span<const RefusedField> refused_of_others() { return kOfOthers; }

std::span<const RefusedField> refused_of_completions() { return kOfCompletions; }

std::span<const RefusedField> refused_of_chats() { return kOfChats; }

}  // namespace moe::serve
