#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/among.h"
#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/nearest.h"
#include "hub/adapter.h"
#include "hub/named_models.h"
#include "infer/eval_routing.h"
#include "infer/options.h"
#include "jobs/drafting.h"
#include "jobs/forward_memory.h"
#include "jobs/launch.h"
#include "jobs/replies.h"
#include "ops/devices.h"
#include "text/utf8.h"
#include "train/checkpoint.h"

namespace moe::cli {
namespace {

// Where a prompt comes from: -p TEXT, -p - (standard input) or --file FILE.
struct PromptFlags {
  std::string text, file;
};

struct Flags {
  std::string model, adapter;
  PromptFlags prompt;
  int64_t samples = 1;
  GenerateOptions generate;
  DraftOptions draft;
  ComputeOptions compute;
  MemoryOptions memory;
  bool show_speed = false, json = false;
  Given given;
};

constexpr const char* kStandardInput = "-";
constexpr size_t kMostBytes = size_t{64} << 20;

std::string read_standard_input() {
  if (isatty(STDIN_FILENO) == 1)
    tell("type the text to continue; Ctrl-D on a line of its own ends it\n");
  std::string text;
  for (;;) {
    char part[1 << 16];
    const ssize_t n = ::read(STDIN_FILENO, part, sizeof part);
    if (n == 0) return text;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("standard input cannot be read: {}", std::strerror(errno));
    text.append(part, static_cast<size_t>(n));
    if (text.size() > kMostBytes)
      fail("standard input is longer than {}, which no prompt is",
           human_bytes(static_cast<double>(kMostBytes)));
  }
}

void check_text(std::string_view text, const std::string& where) {
  if (text.empty()) fail("{} is empty; a prompt has at least one character", where);
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (text[at] == '\0' || step.kind != Utf8Step::Kind::character)
      fail("{} is no text: its byte {} is {}; a prompt is UTF-8", where, at,
           text[at] == '\0' ? "NUL" : "part of no character");
    at += static_cast<size_t>(step.length);
  }
}

FieldList prompt_fields(PromptFlags& f) {
  FieldList list;
  list.add("prompt", f.text, "the text to continue; - reads it from standard input").also({"p"});
  list.add("file", f.file, "a file with the text to continue; one line end at its end is left out")
      .also({"f"});
  return list;
}

// The prompt. One line end at the end of what is read goes, since files and `echo` end in one that
// nobody means to be continued. Fails where none was named or both were (usage), for a file or an
// input that is empty, binary or no UTF-8.
std::string read_prompt(const PromptFlags& f, const Given& given) {
  const bool has_text = given.has("prompt"), has_file = given.has("file");
  if (has_text && has_file)
    fail_usage("--prompt and --file both say what to continue; give one of them");
  if (!has_text && !has_file)
    fail_usage(
        "there is nothing to continue: give --prompt TEXT, --prompt - to read it from standard "
        "input, or --file FILE");
  if (has_text && f.text.empty())
    fail_usage("the prompt is empty; give at least one character with -p, as in -p \"Once\"");
  if (has_text && f.text != kStandardInput) return f.text;
  const bool from_input = has_text || f.file == kStandardInput;
  const std::string where = from_input ? "standard input" : printable(f.file);
  std::string text = from_input ? read_standard_input() : read_text(f.file, kMostBytes);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  check_text(text, where);
  return text;
}

// The texts that follow one prompt, shown as they come; Ctrl-C ends the one being written, and no
// other begins.
class Samples {
 public:
  Samples(const Flags& f, std::string prompt, const comm::Group& group)
      : f_(f), prompt_(std::move(prompt)), group_(group) {}

  // Runs the i-th, whose seed is the first one's plus i; false: it was interrupted.
  bool write(int64_t i, Session& session, const Tokenizer& tokenizer, std::span<const int32_t> ids,
             GenerateOptions options) {
    options.sampler.seed += static_cast<uint64_t>(i);
    begun_ = false;
    ReadingLine reading(!f_.json);
    const auto emit = [&](const std::string& text) {
      reading.clear();
      begin(i, options.sampler.seed);
      if (!f_.json) {
        fmt::print("{}", text);
        std::fflush(stdout);
      }
      return !group_.any(*stop_);
    };
    const auto read = [&](int64_t done, int64_t total) {
      reading.show(done, total);
      return true;
    };
    const Generated out = generate(session, tokenizer, ids, options, emit, read);
    reading.clear();
    if (f_.json) {
      Json reply = generate_reply(prompt_, out);
      if (f_.samples > 1) reply["seed"] = options.sampler.seed;
      replies_.push_back(std::move(reply));
    } else {
      begin(i, options.sampler.seed);
      fmt::print("\n");
      std::fflush(stdout);
    }
    if (!f_.json) tell_guesses(options, out, on_screen());
    if (f_.show_speed) tell("{}\n", describe_speed(out));
    expert_rows_ = out.expert_rows;
    return out.finish != "interrupted";
  }
  const std::vector<std::vector<int64_t>>& expert_rows() const { return expert_rows_; }
  // One object, or a list of them where several were asked for.
  Json json(const std::optional<HotSet>& hot) {
    if (hot)
      for (Json& reply : replies_) reply["hot_set"] = to_json(*hot);
    return f_.samples == 1 ? replies_.at(0) : replies_;
  }

 private:
  // Not before it is certain that something follows: while a long prompt is read Ctrl-C ends the
  // process, as there is no text to be kept.
  void begin(int64_t i, uint64_t seed) {
    if (stop_ == nullptr) stop_ = &watch_interrupts();
    if (begun_ || f_.json) return;
    begun_ = true;
    if (f_.samples > 1)
      fmt::print("{}==> sample {} of {}, --seed {} <==\n", i == 0 ? "" : "\n", i + 1, f_.samples,
                 seed);
    fmt::print("{}", prompt_);
  }

  const Flags& f_;
  std::string prompt_;
  comm::Group group_;
  const std::atomic<bool>* stop_ = nullptr;
  bool begun_ = false;
  Json replies_ = Json::array();
  std::vector<std::vector<int64_t>> expert_rows_;
};

void check_samples(const Flags& f) {
  constexpr int64_t kMost = 10000;
  if (f.samples < 1 || f.samples > kMost)
    fail_usage("--samples is {}; give 1 to {}", f.samples, kMost);
  if (f.samples > 1 && f.generate.sampler.temperature == 0)
    fail_usage(
        "--samples {} would be one text: --temperature 0 always takes the likeliest token; raise "
        "it, or leave --samples out",
        f.samples);
}

// Where a text goes beyond the model's context, or ends there.
void tell_of_length(const ModelConfig& config, int64_t prompt, int64_t max_tokens, bool on_gpu) {
  const int64_t tokens = prompt + max_tokens - 1, longest = config.longest_text(on_gpu);
  if (longest == 0 || tokens <= longest) return tell_of_context(config, tokens, on_screen());
  if (prompt <= longest)
    tell("note: the text ends at {} tokens: {}\n", longest, why_texts_end(config));
}

int run_generate(const Flags& f, const comm::World& world) {
  const comm::Group& group = world.group();
  GenerateOptions options = f.generate;
  validate(options);  // before a large model is loaded for nothing
  check_draft_options(f.draft, options, f.given);
  check_samples(f);
  const std::string prompt = read_prompt(f.prompt, f.given);
  MemoryOptions memory = f.memory;
  share_memory(memory.limits, world);
  LoadedModel loaded;
  comm::together(group, [&] {
    comm::need_one_process(group, f.compute.device);
    if (group.size > 1 && !f.draft.model.empty())
      fail_usage("@draft works in one process; start it without mpirun, or leave @draft out");
    loaded = open_adapted(f.model, f.adapter, memory.limits, group);
  });
  Model& model = *loaded.model;
  Run run(thread_count(world.threads_of(f.compute.threads)), compute_dtype(f.compute, model),
          ops::device_of(f.compute.device));
  const std::vector<int32_t> ids = loaded.tokenizer->encode_text(prompt);
  const bool on_gpu = run.device != nullptr;
  if (group.is_first()) tell_of_length(model.config(), std::ssize(ids), options.max_tokens, on_gpu);
  GenerateOptions said = options;
  check_same_launch(group, fields(said), [&] {
    return comm::Facts{{"--samples", std::to_string(f.samples)},
                       {"model", model_print(&model)},
                       {"prompt", prompt}};
  });
  bool large = false;
  std::optional<Drafting> draft;
  comm::together(group, [&] {
    const int64_t prompt_tokens = std::ssize(ids),
                  capacity =
                      text_capacity(model.config(), prompt_tokens, options.max_tokens, on_gpu);
    std::vector<ForwardUse> uses = {
        session_use(model, options.session, run.compute, prompt_tokens, capacity)};
    if (!f.draft.model.empty()) {
      draft.emplace(f.draft, loaded, options.session, f.compute, capacity, memory.limits,
                    on_screen());
      uses.push_back(draft->use(prompt_tokens));
    }
    large = prepare_memory(f.model, uses, {}, memory,
                           fmt::format("lower --tokens, shorten the prompt{} --cache-dtype q8_0",
                                       draft ? ", leave --draft out or take" : " or take"),
                           on_screen());
  });
  model.move_to(run.device);
  if (draft) options.guesser = &draft->start();
  Session session = session_for(model, run, ids, options);
  Samples samples(f, prompt, group);
  for (int64_t i = 0; i < f.samples; ++i)
    if (!samples.write(i, session, *loaded.tokenizer, ids, options)) break;
  std::optional<HotSet> hot;
  if (large || f.memory.hot_set) hot = hot_set(model, samples.expert_rows());
  if (f.json) print_json(samples.json(hot));
  else if (hot) tell_hot_set(*hot, on_screen());
  return 0;
}

}  // namespace

Action add_generate(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  add_model(list, f->model);
  add_adapter(list, f->adapter);
  list.add(prompt_fields(f->prompt));
  list.add("samples", f->samples,
           "so many texts, one after another; the i-th is what @seed + i - 1 writes alone");
  list.add(fields(f->generate));
  list.add(fields(f->draft));
  list.add(fields(f->compute));
  add_memory(list, f->memory);
  add_hot_set(list, f->memory);
  add_show_speed(list, f->show_speed);
  list.add("json", f->json, "one JSON object on standard output; with @samples a list of them");
  add_flags(app, std::move(list), f->given);
  return
      [f] { return run_among([&](const comm::World& world) { return run_generate(*f, world); }); };
}

}  // namespace moe::cli
