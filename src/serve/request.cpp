#include "serve/request.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/nearest.h"
#include "serve/api_error.h"
#include "serve/base64.h"
#include "serve/chat_fields.h"
#include "serve/options.h"
#include "serve/refused_fields.h"
#include "text/grammar/json_rules.h"
#include "text/grammar/json_schema.h"
#include "text/thoughts.h"
#include "text/tool_calls.h"

namespace moe::serve {
namespace {

constexpr const char* kWhere = "request body";
constexpr int64_t kMostChoices = 16, kMostAlternatives = 20, kMostStops = 16, kMostTexts = 1024,
                  kMostBiases = 4096;
constexpr size_t kMostStopBytes = 4096;            // of one stop
constexpr int64_t kMostTokens = int64_t{1} << 24;  // of the prompts of all texts
constexpr int64_t kLongestReply = int64_t{1} << 24;
constexpr int64_t kCompletionTokens = 16;  // what OpenAI's completions write when nobody says
constexpr double kMostBias = 100;

// Fields of an object; what is thrown about one names it.
class Fields {
 public:
  explicit Fields(const Json& body) : body_(body), reader_(body, kWhere) {}

  bool has(const char* key) const { return reader_.has(key); }
  const Json& value(const char* key) const { return body_.at(key); }
  // Once all that may be there was asked for.
  void refuse_misspelled() const { serve::refuse_misspelled(reader_.keys(), reader_.asked()); }

  template <class F>
  static auto named(const char* key, F&& f) {
    try {
      return f();
    } catch (const Error& e) {
      throw ApiError{400, e.what(), key};
    }
  }
  template <class T>
  T get(const char* key, T otherwise) const {
    return named(key, [&] { return reader_.get<T>(key, std::move(otherwise)); });
  }
  template <class T>
  T get_in(const char* key, T low, T high, T otherwise) const {
    return named(key, [&] { return reader_.get_in<T>(key, low, high, otherwise); });
  }

 private:
  const Json& body_;
  JsonReader reader_;
};

[[noreturn]] void refuse(const char* param, std::string message) {
  throw ApiError{400, std::move(message), param};
}

// A text or a list of texts.
std::vector<std::string> read_texts(const Fields& fields, const char* key) {
  if (!fields.has(key)) return {};
  if (fields.value(key).is_string()) return {fields.get<std::string>(key, "")};
  return fields.get<std::vector<std::string>>(key, {});
}

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Of one token; false, which llama-server's clients say, lets it never come.
float read_bias(int64_t id, const std::string& shown, const Json& bias, int64_t vocab) {
  if (id < 0 || id >= vocab)
    refuse("logit_bias", message("logit_bias: '{}' is no token id; the vocabulary has 0 to {}",
                                 printable(shown, 40), vocab - 1));
  if (bias == false) return -INFINITY;
  if (!bias.is_number() || std::abs(bias.get<double>()) > kMostBias)
    refuse("logit_bias", message("logit_bias of token {} must be a number from -100 to 100", id));
  return static_cast<float>(bias.get<double>());
}

// An object, or llama-server's list of pairs.
std::vector<std::pair<int32_t, float>> read_biases(const Fields& fields, int64_t vocab) {
  std::vector<std::pair<int32_t, float>> biases;
  if (!fields.has("logit_bias")) return biases;
  const Json& given = fields.value("logit_bias");
  const auto is_pair = [](const Json& each) {
    return each.is_array() && each.size() == 2 && each[0].is_number_integer();
  };
  const bool pairs = given.is_array() && std::all_of(given.begin(), given.end(), is_pair);
  if ((!given.is_object() && !pairs) || std::ssize(given) > kMostBiases)
    refuse("logit_bias", message("logit_bias must be an object of token ids and numbers, or a list "
                                 "of pairs of them, {} at most",
                                 kMostBiases));
  const auto add = [&](int64_t id, const std::string& shown, const Json& bias) {
    biases.emplace_back(static_cast<int32_t>(id), read_bias(id, shown, bias, vocab));
  };
  if (pairs)
    for (const Json& pair : given) add(pair[0].get<int64_t>(), pair[0].dump(), pair[1]);
  else
    for (const auto& [key, bias] : given.items()) {
      const bool digits = !key.empty() && key.size() < 10 &&
                          key.find_first_not_of("0123456789") == std::string::npos;
      add(digits ? std::stoll(key) : -1, key, bias);
    }
  return biases;
}

// Choices [tokens,L,K] that an earlier reply showed.
std::shared_ptr<const std::vector<int32_t>> read_replay(const Fields& fields,
                                                        const Served& served) {
  if (!fields.has("replay")) return nullptr;
  if (served.moe_layers.empty())
    refuse("replay", "the model is dense, so there are no choices to replay");
  return Fields::named("replay", [&] {
    const JsonReader replay(fields.value("replay"), "replay");
    const auto shape = replay.get<std::vector<int64_t>>("shape");
    const auto layers = std::ssize(served.moe_layers);
    if (shape.size() != 3 || shape[1] != layers || shape[2] != served.slots)
      fail_usage("replay: the shape must be [tokens, {}, {}], those of this model", layers,
                 served.slots);
    std::vector<int32_t> experts = from_base64(replay.get<std::string>("routed_experts"));
    // Compared by division, as a product of what a client says may not fit.
    if (shape[0] < 0 || std::ssize(experts) % (layers * served.slots) != 0 ||
        std::ssize(experts) / (layers * served.slots) != shape[0])
      fail_usage("replay: {} numbers do not make {} tokens of {} x {}", experts.size(), shape[0],
                 layers, served.slots);
    return std::make_shared<const std::vector<int32_t>>(std::move(experts));
  });
}

// Where an object is wanted, a schema that does not say what kind of value it means is one of
// objects.
OrderedJson of_objects(OrderedJson schema) {
  constexpr const char* kTelling[] = {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"};
  if (std::none_of(std::begin(kTelling), std::end(kTelling),
                   [&](const char* keyword) { return schema.contains(keyword); }))
    schema["type"] = "object";
  return schema;
}

// The grammar of "response_format"; null where any text will do. The schema's keys keep their
// order, which is that of the reply's.
std::shared_ptr<const grammar::Grammar> read_format(const Fields& fields, std::string_view body) {
  if (!fields.has("response_format")) return nullptr;
  return Fields::named("response_format", [&]() -> std::shared_ptr<const grammar::Grammar> {
    const JsonReader format(fields.value("response_format"), "response_format");
    const std::string type = format.get<std::string>("type");
    if (type == "text") return nullptr;
    if (type != "json_object" && type != "json_schema")
      fail_usage("response_format: the type \"{}\" is not known{}", printable(type, 40),
                 suggestion(type.substr(0, 40), {"text", "json_object", "json_schema"}));
    // An object may have its schema beside it, as llama-server has it.
    const bool object = type == "json_object";
    if (object && !format.has("schema")) return grammar::json_object_grammar();
    if (object) format.object("schema");
    else format.object("json_schema").object("schema");
    const OrderedJson whole = parse_ordered_json(body, kWhere);
    const OrderedJson& given = whole.at("response_format");
    const OrderedJson schema =
        object ? of_objects(given.at("schema")) : given.at("json_schema").at("schema");
    return grammar::json_schema_grammar(schema.dump(), "response_format");
  });
}

// What both kinds of request have.
struct Common {
  int64_t choices = 1;
  TextRequest text;
};

void sort_ids(std::vector<int32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

// Tokens that end a reply: the tokenizer's own and, in a chat, what parts messages, where it is a
// token.
std::vector<int32_t> ids_that_end(const Served& served, bool chat) {
  const Tokenizer& tokenizer = *served.tokenizer;
  std::vector<int32_t> ids = tokenizer.special().ends;
  if (const auto eos = tokenizer.eos_id()) ids.push_back(*eos);
  if (chat)
    for (const int32_t id : tokenizer.marks())
      if (std::ranges::count(served.chat->stops(), tokenizer.piece(id)) > 0) ids.push_back(id);
  sort_ids(ids);
  return ids;
}

std::vector<int32_t> read_stop_ids(const Fields& fields, int64_t vocab) {
  const auto given = fields.get<std::vector<int64_t>>("stop_token_ids", {});
  if (std::ssize(given) > kMostBiases)
    refuse("stop_token_ids",
           message("stop_token_ids has {} tokens; {} are possible", given.size(), kMostBiases));
  std::vector<int32_t> ids;
  for (const int64_t id : given) {
    if (id < 0 || id >= vocab)
      refuse("stop_token_ids", message("stop_token_ids: {} is no token id; the vocabulary has 0 to "
                                       "{}",
                                       id, vocab - 1));
    ids.push_back(static_cast<int32_t>(id));
  }
  sort_ids(ids);
  return ids;
}

// What vLLM's clients may ask of a text's end, and of tokens that are no text of their own. Those
// are left out of what is not taken apart; marks of thoughts and calls may be some.
void read_rules(const Fields& fields, const Served& served, bool parsed, ReplyForm& form,
                GenerateOptions& o) {
  const std::vector<int32_t> ends = ids_that_end(served, form.chat);
  const bool keeps = fields.get<bool>("include_stop_str_in_output", false),
             skips = fields.get<bool>("skip_special_tokens", true);
  std::vector<int32_t> special = served.tokenizer->special_marks();
  sort_ids(special);
  const auto is_special = [&](int32_t id) {
    return std::binary_search(special.begin(), special.end(), id);
  };
  TextRules& rules = o.rules;
  rules.stop_ids = read_stop_ids(fields, text_vocab(served.model->config(), *served.tokenizer));
  rules.min_tokens = fields.get_in<int64_t>("min_tokens", 0, kLongestReply, 0);
  if (rules.min_tokens > o.max_tokens)
    refuse("min_tokens", message("min_tokens is {}, and the reply has {} tokens at most",
                                 rules.min_tokens, o.max_tokens));
  o.sampler.min_tokens = rules.min_tokens;
  o.sampler.ends = ends;
  o.sampler.ends.insert(o.sampler.ends.end(), rules.stop_ids.begin(), rules.stop_ids.end());
  if (keeps) {
    rules.kept_stops = form.stops.size();
    if (!skips) rules.kept_ids = ends;
    for (const int32_t id : rules.stop_ids)
      if (!skips || (!is_special(id) && !served.tokenizer->ends_text(id)))
        rules.kept_ids.push_back(id);
    sort_ids(rules.kept_ids);
  }
  if (skips && !parsed) rules.hidden = form.hidden = std::move(special);
}

GenerateOptions read_sampling(const Fields& fields, const Served& served, bool chat,
                              int64_t max_tokens) {
  GenerateOptions o;
  // llama-server's name, where -1 is as many as there is room for.
  const auto predict = fields.get_in<int64_t>("n_predict", -1, kLongestReply, max_tokens);
  o.max_tokens =
      fields.get_in<int64_t>("max_tokens", 0, kLongestReply, predict < 0 ? kLongestReply : predict);
  SamplerOptions& s = o.sampler;
  s.temperature = static_cast<float>(fields.get_in<double>("temperature", 0, 1000, 1));
  s.top_p = static_cast<float>(fields.get_in<double>("top_p", 0, 1, 1));
  if (s.top_p == 0) s.top_p = 1e-6f;  // OpenAI allows it: only the most likely token is left
  s.top_k = std::max<int64_t>(0, fields.get_in<int64_t>("top_k", -1, int64_t{1} << 31, 0));
  s.min_p = static_cast<float>(fields.get_in<double>("min_p", 0, 0.9999, 0));
  // The latter is vLLM's name.
  const auto penalty = fields.get_in<double>("repetition_penalty", 1e-3, 1e3, 1);
  s.repeat_penalty =
      static_cast<float>(fields.get_in<double>("repeat_penalty", 1e-3, 1e3, penalty));
  s.frequency_penalty = static_cast<float>(fields.get_in<double>("frequency_penalty", -2, 2, 0));
  s.presence_penalty = static_cast<float>(fields.get_in<double>("presence_penalty", -2, 2, 0));
  // To vLLM and llama-server, whose clients send it so, -1 is no seed.
  const auto seed = fields.get<int64_t>("seed", -1);
  s.seed = seed == -1 ? random_seed() : static_cast<uint64_t>(seed);
  s.logit_bias = read_biases(fields, text_vocab(served.model->config(), *served.tokenizer));
  if (fields.get<bool>("ignore_eos", false))
    for (const int32_t id : ids_that_end(served, chat)) s.logit_bias.emplace_back(id, -INFINITY);
  o.stop = read_texts(fields, "stop");
  if (std::ssize(o.stop) > kMostStops)
    refuse("stop", message("stop has {} texts; {} are possible", o.stop.size(), kMostStops));
  for (const std::string& stop : o.stop)
    if (stop.size() > kMostStopBytes)
      refuse("stop",
             message("stop has a text of {} bytes; {} are possible", stop.size(), kMostStopBytes));
  std::erase(o.stop, "");
  Fields::named("temperature", [&] { validate(o); });
  return o;
}

Common read_common(const Fields& fields, std::string_view body, const Served& served,
                   ReplyForm& form, int64_t max_tokens) {
  Common c;
  c.text.grammar = read_format(fields, body);
  c.text.tokens = served.tokens;
  // Another name than those here is the model's: clients insist on one of their own.
  const std::string model = fields.get<std::string>("model", "");
  const auto adapter = std::find(served.adapters.begin(), served.adapters.end(), model);
  form.model = adapter != served.adapters.end() ? *adapter : served.name;
  if (adapter != served.adapters.end())
    c.text.adapter = static_cast<int32_t>(adapter - served.adapters.begin()) + 1;
  c.choices = fields.get_in<int64_t>("n", 1, kMostChoices, 1);
  if (fields.get_in<int64_t>("best_of", 1, kMostChoices, c.choices) != c.choices)
    refuse("best_of",
           "best_of is not supported: all texts that are written are told; n says how many");
  form.stream = fields.get<bool>("stream", false);
  if (fields.has("stream_options"))
    form.include_usage = Fields::named("stream_options", [&] {
      return JsonReader(fields.value("stream_options"), "stream_options")
          .get<bool>("include_usage", false);
    });
  form.routing = fields.get<bool>("routing", false);
  form.routed_experts = fields.get<bool>("return_routed_experts", false);
  if (served.moe_layers.empty() && (form.routing || form.routed_experts))
    refuse(form.routing ? "routing" : "return_routed_experts",
           "the model is dense: no token is routed to experts");
  c.text.options = read_sampling(fields, served, form.chat, max_tokens);
  form.stops = c.text.options.stop;
  c.text.routing = form.routing || form.routed_experts;
  c.text.recorded = read_replay(fields, served);
  return c;
}

void check_length(std::span<const int32_t> prompt, const Served& served) {
  if (std::ssize(prompt) < served.context) return;
  throw ApiError{400,
                 message("the prompt has {} tokens, and this server takes texts of {} tokens at "
                         "most, prompt and reply together",
                         prompt.size(), served.context),
                 "prompt", "context_length_exceeded"};
}

// The texts of all choices of a prompt: each draws from a seed of its own.
void add_choices(ParsedRequest& out, const Common& common, const Served& served,
                 const std::vector<int32_t>& prompt) {
  check_length(prompt, served);
  if (std::ssize(out.texts) + common.choices > kMostTexts)
    refuse("prompt", message("a request may ask for {} texts at most", kMostTexts));
  out.prompt_tokens += common.choices * std::ssize(prompt);
  if (out.prompt_tokens > kMostTokens)
    refuse("prompt", message("the texts of a request may have {} tokens of prompts at most, those "
                             "of each choice counted",
                             kMostTokens));
  for (int64_t i = 0; i < common.choices; ++i) {
    out.texts.push_back(common.text);
    out.texts.back().prompt = prompt;
    out.texts.back().options.sampler.seed += static_cast<uint64_t>(i);
  }
}

bool is_ids(const Json& list) {
  return list.is_array() && !list.empty() &&
         std::all_of(list.begin(), list.end(),
                     [](const Json& id) { return id.is_number_integer(); });
}

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& id : list) {
    const auto value = id.get<int64_t>();
    // Whatever no vocabulary has stays so.
    ids.push_back(value < 0 || value > INT32_MAX ? -1 : static_cast<int32_t>(value));
  }
  return ids;
}

// Of one that came as ids the text is what they say.
struct Prompt {
  std::vector<int32_t> ids;
  std::optional<std::string> text = {};
};

std::optional<Prompt> read_prompt(const Json& prompt, const Tokenizer& tokenizer, bool special) {
  if (is_ids(prompt)) return Prompt{ids_of(prompt)};
  if (!prompt.is_string()) return std::nullopt;
  const auto& text = prompt.get_ref<const std::string&>();
  return Prompt{special ? tokenizer.encode_text(text) : tokenizer.encode(text), text};
}

// A text, ids, or a list of texts or of lists of ids. `special`: whether texts have in front what
// the tokenizer puts there.
std::vector<Prompt> read_prompts(const Json& given, const Tokenizer& tokenizer, bool special) {
  if (auto only = read_prompt(given, tokenizer, special)) return {std::move(*only)};
  std::vector<Prompt> prompts;
  if (given.is_array() && std::ssize(given) <= kMostTexts)
    for (const Json& one : given) {
      auto prompt = read_prompt(one, tokenizer, special);
      if (!prompt) break;
      prompts.push_back(std::move(*prompt));
    }
  if (prompts.empty() || prompts.size() != given.size())
    refuse("prompt",
           message("prompt must be a text, a list of token ids, or a list of either, {} at most",
                   kMostTexts));
  return prompts;
}

// The functions that may be called: the one named, or any where `name` is empty.
std::vector<OrderedJson> callable(const OrderedJson& tools, const std::string& name) {
  std::vector<OrderedJson> functions;
  for (const OrderedJson& tool : tools)
    if (const OrderedJson& function = tool.at("function");
        name.empty() || function.at("name") == name)
      functions.push_back(function);
  if (functions.empty())
    refuse("tool_choice", message("there is no tool '{}'", printable(name, 80)));
  return functions;
}

// The $id makes it a schema of its own, wherever it stands: its $refs lead from there.
OrderedJson parameters_of(const OrderedJson& function) {
  const auto given = function.find("parameters");
  OrderedJson schema = of_objects(given != function.end() && !given->is_null()
                                      ? *given
                                      : OrderedJson{{"additionalProperties", false}});
  schema["$id"] = "parameters";
  return schema;
}

// The schema of a call of one of the functions.
OrderedJson call_schema(const std::vector<OrderedJson>& functions, const char* arguments) {
  OrderedJson any = OrderedJson::array();
  for (const OrderedJson& function : functions)
    any.push_back(
        {{"type", "object"},
         {"properties",
          {{"name", {{"const", function.at("name")}}}, {arguments, parameters_of(function)}}},
         {"required", {"name", arguments}},
         {"additionalProperties", false}});
  return any.size() == 1 ? any[0] : OrderedJson{{"anyOf", std::move(any)}};
}

// What opens a call of the tool of this name.
std::string named_begin(std::string begin, const std::string& name) {
  constexpr std::string_view kName = "NAME";
  return begin.replace(begin.find(kName), kName.size(), name);
}

// Lets only a call come: of any tool ("required") or of the one that the choice names. Returns what
// opens it, for the prompt to end with.
std::string force_call(const Json& choice, std::string_view body, const Served& served,
                       ParsedRequest& out, TextRequest& text) {
  std::string name;
  if (choice.is_object())
    name = JsonReader(choice, "tool_choice").object("function").get<std::string>("name");
  else if (choice != "required")
    refuse("tool_choice", "tool_choice must be \"auto\", \"none\", \"required\" or a function");
  const ForcedCall* call = forced_call(served.chat->calls());
  if (call == nullptr)
    refuse("tool_choice", "the model's template has no form of calls in which one could be forced");
  if (text.grammar)
    refuse("tool_choice", "a call cannot be forced where response_format asks for something else");
  const OrderedJson whole = parse_ordered_json(body, kWhere);
  const std::vector<OrderedJson> functions = callable(whole.at("tools"), name);
  const bool named = functions.size() == 1 && call->named != nullptr;
  if (!named && call->begin == nullptr)
    refuse("tool_choice",
           "this model names a tool before its arguments: of several tools tool_choice must name "
           "the one to call");
  if (named) out.form.call_name = functions[0].at("name").get<std::string>();
  const OrderedJson schema =
      named ? parameters_of(functions[0]) : call_schema(functions, call->arguments);
  text.grammar = grammar::json_schema_grammar(schema.dump(), "tools");
  out.form.forced = true;
  return named ? named_begin(call->named, out.form.call_name) : call->begin;
}

// What the reply may call. Where it may not, the template is told of no tools. Returns what opens a
// call that has to come.
std::string read_tool_choice(const Fields& fields, std::string_view body, const Served& served,
                             ParsedRequest& out, ChatRequest& chat, TextRequest& text) {
  const Json choice = fields.has("tool_choice") ? fields.value("tool_choice") : Json("auto");
  if (choice == "none") chat.tools = {};
  out.form.tools = !chat.tools.none();
  if (out.form.tools) out.form.arguments = tool_arguments(fields.value("tools"));
  out.form.one_call = !fields.get<bool>("parallel_tool_calls", true);
  if (choice == "none" || choice == "auto") return "";
  if (!out.form.tools) refuse("tool_choice", "tool_choice asks for a call, and there are no tools");
  return Fields::named("tool_choice", [&] { return force_call(choice, body, served, out, text); });
}

void check_modalities(const Fields& fields) {
  for (const auto& each : fields.get<std::vector<std::string>>("modalities", {}))
    if (each != "text")
      refuse("modalities", message("modalities has \"{}\", and this server makes text only",
                                   printable(each, 40)));
}

void read_thoughts(const Fields& fields, const Served& served, ReplyForm& form) {
  form.thoughts_told = fields.get<bool>("include_reasoning", true);
  const auto format = fields.get<std::string>("reasoning_format", "");
  form.thoughts_apart =
      format.empty() ? served.thoughts_apart
                     : Fields::named("reasoning_format", [&] { return parts_thoughts(format); });
}

// vLLM's; a completion tells them by echo and logprobs too, as OpenAI has it.
void read_prompt_logprobs(const Fields& fields, ReplyForm& form, TextRequest& text) {
  if (!fields.has("prompt_logprobs")) return;
  text.prompt_alternatives = fields.get_in<int64_t>("prompt_logprobs", 0, kMostAlternatives, 0);
  if (form.stream)
    refuse("prompt_logprobs", "prompt_logprobs are told of whole replies, and stream is true");
  if (form.echo && form.logprobs)
    refuse("prompt_logprobs", "echo and logprobs tell them already; leave prompt_logprobs out");
  form.prompt_logprobs = text.prompt_logprobs = true;
}

// Opens a reply that is content and nothing else.
std::string content_begin(const ChatTemplate& chat) {
  const ReplyChannels* channels = reply_channels(chat.calls());
  return channels == nullptr ? "" : channels->content_begin;
}

// Whose message the reply is, and what stands before what is written of it.
void read_beginning(const Fields& fields, const Served& served, const ChatRequest& chat,
                    const std::string& prompt, ReplyForm& form) {
  const std::string said = of_last_message(chat, "content"), role = of_last_message(chat, "role");
  if (!chat.ask) form.role = role;
  if (fields.get<bool>("echo", false) && role == form.role) form.before = said;
  form.opened = opens_thought(prompt);
  if (!chat.goes_on) return;
  if (form.forced)
    refuse("tool_choice",
           "a call cannot be forced where continue_final_message goes on with a text");
  form.begun = content_begin(*served.chat);
  if (form.opened == nullptr) form.opened = leaves_thought_open(said);
}

}  // namespace

ParsedRequest read_completion(std::string_view body, const Served& served) {
  const Json json = parse_json(body, kWhere);
  const Fields fields(json);
  ParsedRequest out;
  refuse_fields(json, refused_of_completions());
  refuse_fields(json, refused_of_others());
  Common common = read_common(fields, body, served, out.form, kCompletionTokens);
  out.choices = common.choices;
  read_rules(fields, served, false, out.form, common.text.options);
  out.form.echo = fields.get<bool>("echo", false);
  out.form.logprobs = fields.has("logprobs") && !fields.value("logprobs").is_boolean();
  if (out.form.logprobs) {
    common.text.top_logprobs = fields.get_in<int64_t>("logprobs", 0, kMostAlternatives, 0);
    common.text.prompt_logprobs = out.form.echo;
  } else if (fields.get<bool>("logprobs", false)) {
    out.form.logprobs = true;
    common.text.top_logprobs = 0;
    common.text.prompt_logprobs = out.form.echo;
  }
  read_prompt_logprobs(fields, out.form, common.text);
  if (!fields.has("prompt")) refuse("prompt", "prompt is missing");
  const int64_t vocab = text_vocab(served.model->config(), *served.tokenizer);
  const bool special = fields.get<bool>("add_special_tokens", true);
  for (const Prompt& prompt : read_prompts(fields.value("prompt"), *served.tokenizer, special)) {
    if (out.form.echo) {
      for (const int32_t id : prompt.ids)
        if (id < 0 || id >= vocab)
          refuse("prompt", message("{} is no token id; the vocabulary has 0 to {}", id, vocab - 1));
      out.echo.push_back(prompt.text ? *prompt.text : served.tokenizer->decode(prompt.ids));
    }
    add_choices(out, common, served, prompt.ids);
  }
  fields.refuse_misspelled();
  return out;
}

std::string chat_prompt(std::string_view body, const Served& served) {
  const ChatRequest request = read_chat_request(body, kWhere);
  return Fields::named("messages", [&] { return served.chat->render(request); });
}

ParsedRequest read_chat(std::string_view body, const Served& served) {
  const Json json = parse_json(body, kWhere);
  const Fields fields(json);
  refuse_fields(json, refused_of_chats());
  refuse_fields(json, refused_of_others());
  check_modalities(fields);
  ParsedRequest out;
  out.form.chat = true;
  Common common = read_common(fields, body, served, out.form, served.context);
  // Who gives both has the older name there for servers that know no other.
  int64_t& max_tokens = common.text.options.max_tokens;
  max_tokens = fields.get_in<int64_t>("max_completion_tokens", 0, kLongestReply, max_tokens);
  out.choices = common.choices;
  out.form.logprobs = fields.get<bool>("logprobs", false);
  const auto alternatives = fields.get_in<int64_t>("top_logprobs", 0, kMostAlternatives, 0);
  if (out.form.logprobs) common.text.top_logprobs = alternatives;
  else if (alternatives > 0) refuse("top_logprobs", "top_logprobs needs logprobs to be true");
  read_prompt_logprobs(fields, out.form, common.text);
  ChatRequest chat = read_chat_request(body, kWhere);
  const std::string call_begin = read_tool_choice(fields, body, served, out, chat, common.text);
  read_thoughts(fields, served, out.form);
  const std::string prompt = Fields::named("messages", [&] { return served.chat->render(chat); });
  read_beginning(fields, served, chat, prompt, out.form);
  // A model that is not asked for a message begins one by a mark that parts them.
  if (chat.ask || chat.goes_on) {
    auto& stops = common.text.options.stop;
    stops.insert(stops.end(), served.chat->stops().begin(), served.chat->stops().end());
  }
  std::string opening;
  const ReplySyntax syntax = served.chat->reply_syntax(out.form.tools, out.form.opened);
  read_rules(fields, served, syntax.parses(), out.form, common.text.options);
  if (common.text.grammar) {
    // A thought that the prompt opened would hold all of what has to come.
    if (const ThoughtTags* opened = std::exchange(out.form.opened, nullptr))
      opening = fmt::format("\n{}\n\n", opened->close);
    if (!chat.goes_on) opening += out.form.forced ? call_begin : content_begin(*served.chat);
  }
  const std::string all = prompt + opening;
  add_choices(out, common, served,
              fields.get<bool>("add_special_tokens", false) ? served.tokenizer->encode_text(all)
                                                            : served.tokenizer->encode(all));
  fields.refuse_misspelled();
  return out;
}

}  // namespace moe::serve
