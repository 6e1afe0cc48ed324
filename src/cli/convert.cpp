// Turns a model from one file into another: folder or GGUF, quantised or not, an adapter merged or
// not, with the account of what became of its tensors.
#include "jobs/convert.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/flags.h"
#include "cli/screen.h"
#include "cli/verbs.h"

namespace moe::cli {
namespace {

struct Flags {
  ConvertJob job;
  bool json = false;
  Given given;
};

void print_account(const ConvertReport& report, const std::string& out) {
  fmt::print("{:>7}  {:<5}  {:>7}  {:<5} {:>10} {:>10}\n", "tensors", "of", "become", "of",
             "before", "after");
  for (const ConvertedRow& row : report.rows) {
    const std::string example = row.targets == 1 ? row.example : fmt::format("{} ...", row.example);
    fmt::print("{:>7}  {:<5}  {:>7}  {:<5} {:>10} {:>10}  {}\n", row.sources, name_of(row.from),
               row.targets, name_of(row.to), human_bytes(static_cast<double>(row.bytes_before)),
               human_bytes(static_cast<double>(row.bytes_after)),
               row.why.empty() ? example : fmt::format("{}: {}", example, row.why));
  }
  if (report.aliases > 0)
    fmt::print("{} more: copies of what is written once\n", counted(report.aliases, "tensor"));
  if (report.quantised_twice > 0)
    fmt::print(
        "note: {} quantised from quantised numbers, which loses more than from the original\n",
        counted(report.quantised_twice, "tensor"));
  fmt::print("{}: {} read once, {} written once, {} numbers; {} became {}\n", out,
             counted(report.sources, "tensor"), counted(report.targets, "tensor"),
             human_count(static_cast<double>(report.numbers)),
             human_bytes(static_cast<double>(report.bytes_before)),
             human_bytes(static_cast<double>(report.bytes_after)));
  if (report.files.size() > 1)
    fmt::print("it is {} files; the first opens all: {}\n", report.files.size(), report.files[0]);
  if (!report.why_own.empty())
    fmt::print(
        "note: llama.cpp does not run {}: {}; the file has a form of moe's own, which moe reads as "
        "any other\n",
        out, report.why_own);
}

int run_convert(const Flags& f) {
  check_given(f.job, f.given);
  if (f.json) {
    print_json(to_json(convert_model(f.job, on_screen())));
    return 0;
  }
  const auto on_merged = [&](const MergedAdapter& merged) {
    fmt::print(
        "adapter {}: added to {} matrices, the largest change {:.2g} of a matrix (norms){}\n",
        f.job.adapter, merged.matrices, merged.largest,
        merged.whole > 0 ? fmt::format("; {} replaced", counted(merged.whole, "tensor")) : "");
  };
  const auto on_left_out = [](const Beside& beside) {
    fmt::print("left out: {} of {} ({} ...)\n", counted(beside.tensors, "tensor"), beside.what,
               beside.example);
  };
  const auto on_written = [&](const ConvertReport& account) { print_account(account, f.job.out); };
  const ConvertReply reply =
      convert_model(f.job, on_screen(), {on_merged, on_left_out, on_written});
  if (reply.adapter_alone) {
    fmt::print("{}: an adapter of {} matrices, rank {}\n", f.job.out, reply.adapter_alone->matrices,
               reply.adapter_alone->rank);
    if (!reply.adapter_alone->why_own.empty())
      fmt::print("note: llama.cpp does not run its model: {}\n", reply.adapter_alone->why_own);
    return 0;
  }
  if (!reply.verified) return 0;
  const auto& [text, before, after] = *reply.verified;
  fmt::print(
      "perplexity on {} ({} windows of {}): {:.4f} before, {:.4f} after, {:+.4f} ({:+.2f}%)\n",
      text.path, before.windows, text.rule.window, before.perplexity, after.perplexity,
      after.perplexity - before.perplexity, 100 * (after.perplexity / before.perplexity - 1));
  return 0;
}

}  // namespace

Action add_convert(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  FieldList list = fields(f->job);
  list.add("json", f->json, "one JSON object on standard output");
  add_flags(app, std::move(list), f->given);
  return [f] { return run_convert(*f); };
}

}  // namespace moe::cli
