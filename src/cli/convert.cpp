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
    fmt::print("{} more: copies of what is written once, or not needed\n",
               counted(report.aliases, "tensor"));
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
  for (const std::string& note : report.notes) fmt::print("note: {}\n", note);
}

// Of the experts' rows the smallest number and the middle one, and who had none.
void print_coverage(const ConvertReport& report) {
  std::vector<int64_t> rows;
  for (const LayerRows& layer : report.expert_rows)
    rows.insert(rows.end(), layer.rows.begin(), layer.rows.end());
  if (rows.empty()) return;
  const auto middle = rows.begin() + std::ssize(rows) / 2;
  std::nth_element(rows.begin(), middle, rows.end());
  fmt::print("experts: {} rows in the middle, {} at least", *middle,
             *std::min_element(rows.begin(), rows.end()));
  std::string missed;
  for (const LayerRows& layer : report.expert_rows) {
    std::string here;
    for (size_t e = 0; e < layer.rows.size(); ++e)
      if (layer.rows[e] == 0) here += fmt::format("{}{}", here.empty() ? "" : " ", e);
    if (!here.empty())
      missed += fmt::format("{}layer {}: {}", missed.empty() ? "" : "; ", layer.layer, here);
  }
  if (missed.empty()) fmt::print("\n");
  else
    fmt::print(
        "\nnever reached: {}\nthese are weighed as the other experts of their layer are together; "
        "a longer text (--windows) may reach them\n",
        missed);
}

void print_weighed(const ConvertReport& report, const std::string& from) {
  fmt::print("{} quantised by the importance in {}", counted(report.weighed, "tensor"), from);
  if (report.compensated > 0)
    fmt::print(", errors of {} made good",
               report.compensated == report.weighed ? "all" : std::to_string(report.compensated));
  if (report.not_weighed.empty()) fmt::print("\n");
  else
    fmt::print("; it does not have {}: {}{}\n", counted(std::ssize(report.not_weighed), "tensor"),
               report.not_weighed[0], report.not_weighed.size() > 1 ? " ..." : "");
  print_coverage(report);
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
        (merged.whole > 0 ? fmt::format("; {} replaced", counted(merged.whole, "tensor")) : "") +
            (merged.token_rows > 0
                 ? fmt::format("; {} of tokens replaced", counted(merged.token_rows, "row"))
                 : ""));
  };
  const auto on_left_out = [](const Beside& beside) {
    fmt::print("left out: {} of {} ({} ...)\n", counted(beside.tensors, "tensor"), beside.what,
               beside.example);
  };
  std::string from;
  const auto on_importance = [&](const MeasuredImportance& measured) {
    from = measured.from;
    if (measured.perplexity)
      fmt::print("calibrated on {}: {} of it, perplexity {:.4f}\n", from,
                 counted(measured.importance.windows, "window"), *measured.perplexity);
  };
  const auto on_written = [&](const ConvertReport& account) {
    print_account(account, f.job.out);
    if (!from.empty()) print_weighed(account, from);
  };
  const ConvertReply reply =
      convert_model(f.job, on_screen(), {on_merged, on_left_out, on_importance, on_written});
  if (reply.adapter_alone) {
    fmt::print("{}: an adapter of {} matrices, rank {}\n", f.job.out, reply.adapter_alone->matrices,
               reply.adapter_alone->rank);
    if (!reply.adapter_alone->why_own.empty())
      fmt::print("note: llama.cpp does not run its model: {}\n", reply.adapter_alone->why_own);
    return 0;
  }
  if (!reply.verified) return 0;
  const auto& [text, before, after] = *reply.verified;
  fmt::print("perplexity on {} ({} of {}): {:.4f} before, {:.4f} after, {:+.4f} ({:+.2f}%)\n",
             text.path, counted(before.windows, "window"), text.rule.window, before.perplexity,
             after.perplexity, after.perplexity - before.perplexity,
             100 * (after.perplexity / before.perplexity - 1));
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
