// Makes shards of tokens from text that is too large to be read at every start.
#include "text/tokenize.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/json.h"
#include "core/words.h"
#include "options/common.h"
#include "text/bpe_train.h"

namespace moe::cli {
namespace {

struct Flags {
  TokenizeJob job;
  std::string tokenizer = "bytes";
  bool json = false;
  Given given;
};

Json tokens_json(const std::string& folder, const TokensIndex& index) {
  return {{"folder", folder},
          {"tokens", index.tokens()},
          {"documents", index.documents},
          {"trained", index.tokens() - index.untrained},
          {"bytes", index.bytes()},
          {"shards", index.shards.size()}};
}

void describe(ProgressLine& screen, const std::string& folder, const TokensIndex& index) {
  const auto tokens = static_cast<double>(index.tokens());
  std::string text = fmt::format("{}: {} tokens in {}, {}, {:.2f} bytes a token", folder,
                                 human_count(tokens), counted(index.documents, "document"),
                                 counted(static_cast<int64_t>(index.shards.size()), "shard"),
                                 static_cast<double>(index.bytes()) / tokens);
  if (index.untrained > 0)
    text += fmt::format(", {:.1f}% learned from",
                        100 * (1 - static_cast<double>(index.untrained) / tokens));
  screen.log(text);
}

int run_tokenize(Flags& f) {
  if (f.job.paths.empty()) fail_usage("--data is missing: name a text file or a folder of them");
  f.job.threads = thread_count(f.job.threads);
  ProgressLine screen;
  std::error_code ignored;
  // A model's own is taken with its template, by which dialogues are written for it.
  const std::unique_ptr<Tokenizer> tokenizer = std::filesystem::is_directory(f.tokenizer, ignored)
                                                   ? load_tokenizer(f.tokenizer)
                                                   : choose_tokenizer(f.tokenizer, f.job.paths);
  const std::atomic<bool>& stop = watch_interrupts();  // only now: learning a tokenizer looks at no
                                                       // flag and leaves nothing behind
  const TokenizeResult result = tokenize(f.job, *tokenizer, [&](int64_t done, int64_t total) {
    if (stop) fail("interrupted; nothing was written to {}", f.job.out);
    screen.show(done / 1024, total / 1024, "KiB of text");
  });
  for (const std::string& line : describe(result.skipped)) screen.log(line);
  const std::string train = result.held_out ? f.job.out + "/train" : f.job.out,
                    valid = f.job.out + "/valid";
  describe(screen, train, result.train);
  if (result.held_out) describe(screen, valid, *result.held_out);
  if (f.json) {
    Json reply = {{"vocab", result.train.vocab}, {"train", tokens_json(train, result.train)}};
    if (result.held_out) reply["valid"] = tokens_json(valid, *result.held_out);
    print_json(reply);
  } else {
    screen.log(fmt::format("train on it with: moe train --data {}{} --out DIR", train,
                           result.held_out ? " --eval-data " + valid : ""));
  }
  return 0;
}

}  // namespace

Action add_tokenize(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list;
  list.add("data", f->job.paths,
           "text files, .jsonl files, or folders of them; each file's stem names its domain");
  list.add("tokenizer", f->tokenizer,
           "bytes; bpe:SIZE, learned from @data; or a model folder, for its tokenizer");
  list.add("out", f->job.out, "folder for the shards and their tokenizer");
  list.add("hold_out", f->job.hold_out,
           "hold out this share of the text, chosen by a hash of its content: writes DIR/train and "
           "DIR/valid");
  add_threads(list, f->job.threads);
  list.add("json", f->json, "one JSON object on standard output at the end");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_tokenize(*f); };
}

}  // namespace moe::cli
