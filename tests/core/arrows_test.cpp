// Holds the source tree to the table src/ARROWS: which folder may include which, no cycle among
// folders or files, no file over 800 lines. The rules are checked twice: on trees made to break
// them one by one (so that the test is known to fail when it should), and on src/ itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace moe::arrows_test {
namespace {

constexpr size_t kMaxLines = 800;
// lies in include/; only api, which implements it, may include it
constexpr const char* kPublicHeader = "moe/moe.h";

using Table = std::map<std::string, std::set<std::string>>;  // folder -> folders it may include
using Tree = std::map<std::string, std::string>;             // path below src/ -> text
using Graph = std::map<std::string, std::set<std::string>>;

Table read_table(const std::string& text) {
  Table table;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos)
      throw std::runtime_error("src/ARROWS: no ':' in line '" + line + "'");
    std::istringstream words(line.substr(colon + 1));
    std::set<std::string>& allowed = table[line.substr(0, colon)];
    for (std::string word; words >> word;) allowed.insert(word);
  }
  return table;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.find('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

// Paths named by the #include lines of a text, with whether they stood in quotes. A line inside a
// comment or a string counts too: none has a reason to be there.
std::vector<std::pair<std::string, bool>> includes_of(const std::string& text) {
  std::vector<std::pair<std::string, bool>> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    size_t at = line.find_first_not_of(" \t");
    if (at == std::string::npos || line[at] != '#') continue;
    at = line.find_first_not_of(" \t", at + 1);
    if (at == std::string::npos || line.compare(at, 7, "include") != 0) continue;
    at = line.find_first_not_of(" \t", at + 7);
    if (at == std::string::npos || (line[at] != '"' && line[at] != '<')) continue;  // a macro
    const size_t end = line.find(line[at] == '"' ? '"' : '>', at + 1);
    if (end != std::string::npos)
      found.emplace_back(line.substr(at + 1, end - at - 1), line[at] == '"');
  }
  return found;
}

// The nodes of one cycle, first node repeated at the end; empty when there is none.
std::vector<std::string> find_cycle(const Graph& graph) {
  std::map<std::string, int> state;  // 0 new, 1 on the path, 2 done
  std::vector<std::string> path;
  auto visit = [&](auto&& self, const std::string& node) -> bool {
    state[node] = 1;
    path.push_back(node);
    if (const auto it = graph.find(node); it != graph.end()) {
      for (const std::string& next : it->second) {
        if (state[next] == 1) {
          path.erase(path.begin(), std::find(path.begin(), path.end(), next));
          path.push_back(next);
          return true;
        }
        if (state[next] == 0 && self(self, next)) return true;
      }
    }
    path.pop_back();
    state[node] = 2;
    return false;
  };
  for (const auto& [node, edges] : graph) {
    if (state[node] == 0 && visit(visit, node)) return path;
  }
  return {};
}

void report_cycle(const std::string& what, const Graph& graph, std::vector<std::string>& faults) {
  const std::vector<std::string> cycle = find_cycle(graph);
  if (cycle.empty()) return;
  std::string line = what + " cycle:";
  for (const std::string& node : cycle) line += " " + node;
  faults.push_back(line);
}

// Everything wrong with a tree, one line a fault.
std::vector<std::string> faults_of(const Table& table, const Tree& tree) {
  std::vector<std::string> faults;
  for (const auto& [folder, allowed] : table) {
    for (const std::string& other : allowed) {
      if (!table.contains(other))
        faults.push_back("src/ARROWS: " + folder + " may include the unknown folder " + other);
    }
  }
  report_cycle("src/ARROWS:", table, faults);

  Graph files;
  for (const auto& [path, text] : tree) {
    const std::string folder = folder_of(path);
    if (!table.contains(folder)) faults.push_back(path + ": its folder is not in src/ARROWS");
    const size_t lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    if (lines > kMaxLines)
      faults.push_back(path + ": " + std::to_string(lines) + " lines, more than " +
                       std::to_string(kMaxLines));
    for (const auto& [target, quoted] : includes_of(text)) {
      const std::string to = folder_of(target);
      if (!quoted && !table.contains(to)) continue;  // a system or library header
      if (!quoted && target == kPublicHeader && folder == "api") continue;
      if (!tree.contains(target)) {
        faults.push_back(path + ": includes \"" + target +
                         "\", which is no file below src/ (write the path from src/)");
      } else if (to != folder && (!table.contains(folder) || !table.at(folder).contains(to))) {
        faults.push_back(path + ": includes " + target + ", an arrow " + folder + " -> " + to +
                         " that src/ARROWS does not allow");
      }
      // A .cpp that names itself is a kernel compiled once for each instruction set.
      if (target != path) files[path].insert(target);
    }
  }
  report_cycle("include", files, faults);
  return faults;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::filesystem::path source_root() {
  return std::filesystem::path(MOE_TEST_DATA).parent_path().parent_path() / "src";
}

Tree read_tree() {
  Tree tree;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source_root())) {
    const std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || (extension != ".h" && extension != ".cpp")) continue;
    tree[entry.path().lexically_relative(source_root()).generic_string()] = read_text(entry.path());
  }
  return tree;
}

std::string join(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

const char* const kSmallTable = "core:\nops: core\nmodel: ops core\n";

struct Broken {
  const char* name;
  const char* table;
  Tree tree;
  const char* says;  // part of the one fault expected
};

TEST(Arrows, EachFaultIsFound) {
  const std::string long_file(801, '\n');
  const std::vector<Broken> cases = {
      {"arrow up",
       kSmallTable,
       {{"core/a.h", "#include \"ops/b.h\"\n"}, {"ops/b.h", ""}},
       "arrow core -> ops"},
      {"arrow up in angle brackets",
       kSmallTable,
       {{"core/a.h", "  # include <ops/b.h>\n"}, {"ops/b.h", ""}},
       "arrow core -> ops"},
      {"no such file",
       kSmallTable,
       {{"ops/b.h", "#include \"core/gone.h\"\n"}},
       "no file below src/"},
      {"path not from src",
       kSmallTable,
       {{"ops/b.h", "#include \"c.h\"\n"}, {"ops/c.h", ""}},
       "no file below src/"},
      {"path with dots",
       kSmallTable,
       {{"ops/b.h", "#include \"../core/a.h\"\n"}, {"core/a.h", ""}},
       "no file below src/"},
      {"the public header outside api",
       "core:\nmoe: core\n",
       {{"core/a.cpp", "#include <moe/moe.h>\n"}},
       "no file below src/"},
      {"file cycle",
       kSmallTable,
       {{"core/a.h", "#include \"core/b.h\"\n"}, {"core/b.h", "#include \"core/a.h\"\n"}},
       "include cycle"},
      {"folder not in the table", kSmallTable, {{"web/a.cpp", ""}}, "not in src/ARROWS"},
      {"file too long", kSmallTable, {{"core/a.cpp", long_file}}, "801 lines"},
      {"table names an unknown folder", "core: base\n", {}, "unknown folder base"},
      {"table has a cycle", "core: ops\nops: core\n", {}, "cycle: core ops core"},
  };
  for (const Broken& broken : cases) {
    const std::vector<std::string> faults = faults_of(read_table(broken.table), broken.tree);
    ASSERT_EQ(faults.size(), 1u) << broken.name << ":\n" << join(faults);
    EXPECT_NE(faults[0].find(broken.says), std::string::npos) << broken.name << ": " << faults[0];
  }
}

TEST(Arrows, AllowedTreeHasNoFault) {
  const Tree tree = {
      {"core/a.h", "#include <vector>\n#include <fmt/format.h>\n"},
      {"ops/b.h", "#include \"core/a.h\"\n"},
      {"ops/b.cpp", "#include \"ops/b.h\"\n#include \"ops/b.cpp\"\n" + std::string(798, '\n')},
      {"model/c.cpp", "#include \"ops/b.h\"\n#include \"core/a.h\"\n"}};
  EXPECT_EQ(join(faults_of(read_table(kSmallTable), tree)), "");
}

// The arrows the design forbids by name stay forbidden, whatever the table comes to say.
TEST(Arrows, ForbiddenByName) {
  const Table table = read_table(read_text(source_root() / "ARROWS"));
  const std::vector<std::pair<std::string, std::string>> never = {{"train", "infer"},
                                                                  {"train", "serve"},
                                                                  {"train", "analyze"},
                                                                  {"formats", "model"},
                                                                  {"moe", "model"}};
  for (const auto& [from, to] : never) {
    ASSERT_TRUE(table.contains(from));
    EXPECT_FALSE(table.at(from).contains(to)) << from << " -> " << to;
  }
}

TEST(Arrows, SourceTree) {
  const Tree tree = read_tree();
  ASSERT_GT(tree.size(), 10u) << "no sources found below " << source_root();
  EXPECT_EQ(join(faults_of(read_table(read_text(source_root() / "ARROWS")), tree)), "");
}

}  // namespace
}  // namespace moe::arrows_test
