#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>

#include "core/error.h"
#include "text/jinja/builtins.h"
#include "text/jinja/jinja.h"
#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace moe::jinja {
namespace {

using EKind = Expr::Kind;
using SKind = Statement::Kind;

constexpr int kDeepestCalls = 40;    // of macros
constexpr size_t kKeptScope = 2048;  // bytes that one counts for, with what `loop` is in it
constexpr int kDeepestSteps = 1000;  // statements and expressions under way: each takes some stack

// Names that were set; what is not found here is looked for outside. Of those that statements run
// in each but the outermost is shared: a macro that was defined there keeps it.
struct Scope : std::enable_shared_from_this<Scope> {
  explicit Scope(Scope* around) : outside(around) {}

  Scope* outside;
  std::vector<std::pair<std::string, Value>> names;
  bool is_kept = false;

  // `looked`: the names that were looked at are added to it.
  const Value* find(std::string_view name, int64_t& looked) const {
    for (const Scope* s = this; s != nullptr; s = s->outside)
      for (const auto& entry : s->names) {
        ++looked;
        if (entry.first == name) return &entry.second;
      }
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    for (auto& entry : names)
      if (entry.first == name) {
        entry.second = std::move(value);
        return;
      }
    names.emplace_back(name, std::move(value));
  }
};

int64_t plus(int64_t x, int64_t y) {
  int64_t out = 0;
  if (__builtin_add_overflow(x, y, &out)) fail_overflow();
  return out;
}
int64_t minus(int64_t x, int64_t y) {
  int64_t out = 0;
  if (__builtin_sub_overflow(x, y, &out)) fail_overflow();
  return out;
}
int64_t times(int64_t x, int64_t y) {
  int64_t out = 0;
  if (__builtin_mul_overflow(x, y, &out)) fail_overflow();
  return out;
}

class Renderer final : public Host {
 public:
  Renderer(const Variables& variables, const RenderOptions& options) : options_(options) {
    for (const auto& [name, value] : variables) global_.set(name, value);
    add_functions();
  }

  Rendered run(const Body& body) {
    body_(body, global_, rendered_.text);
    return std::move(rendered_);
  }

  // ---- Host ------------------------------------------------------------------------------------

  Value filter(const std::string& name, const Value& on, const Arguments& given) override {
    const auto found = filters().find(name);
    if (found == filters().end()) fail("the filter {} is not known here", name);
    work_on(on);
    static constexpr std::string_view kTakeSafe[] = {
        "safe", "e", "escape", "string", "length", "count", "tojson", "default", "d"};
    if (on.safe() &&
        std::find(std::begin(kTakeSafe), std::end(kTakeSafe), name) == std::end(kTakeSafe))
      fail_safe(name);
    return found->second({*this, name, on, given});
  }
  bool test(const std::string& name, const Value& on, const Arguments& given) override {
    const auto found = tests().find(name);
    if (found == tests().end()) fail("the test {} is not known here", name);
    return found->second({*this, name, on, given}).truth();
  }
  Value attribute(const Value& x, const std::string& name) override {
    if (x.undefined()) fail("{} is undefined, and so has no {}", x.undefined()->name, name);
    const Table* methods = x.text()       ? &text_methods()
                           : x.dict()     ? &dict_methods()
                           : x.sequence() ? &sequence_methods()
                                          : nullptr;
    if (methods != nullptr)
      if (const auto found = methods->find(name); found != methods->end())
        return Function{name,
                        [this, x, row = *found](const Arguments& given) {
                          if (x.safe()) fail_safe(row.first);
                          work_on(x);
                          return row.second({*this, row.first, x, given});
                        },
                        x.depth()};
    if (x.dict()) {
      const Value key = name;
      work_of_finding(*this, std::ssize(x.dict()->entries), key);
      if (const Value* found = x.dict()->find(key)) return *found;
    }
    if (x.space()) {
      work_on_names(std::ssize(x.space()->fields));
      for (const auto& field : x.space()->fields)
        if (field.first == name) return field.second;
    }
    return Undefined{name};
  }
  Value item(const Value& x, const Value& key) override {
    if (x.undefined()) fail("{} is undefined, and so has no items", x.undefined()->name);
    if (x.dict()) {
      work_of_finding(*this, std::ssize(x.dict()->entries), key);
      if (const Value* found = x.dict()->find(key)) return *found;
    }
    if ((x.sequence() || x.text()) && key.integer()) {
      if (x.text()) work_on(x);
      const int64_t size = *length_of(x).integer(),
                    place = *key.integer() < 0 ? *key.integer() + size : *key.integer();
      if (place < 0 || place >= size) return Undefined{fmt::format("item {}", *key.integer())};
      const auto index = static_cast<size_t>(place);
      return x.text() ? Value(std::string(character_of(*x.text(), index)))
                      : x.sequence()->items[index];
    }
    if (key.text()) return attribute(x, *key.text());
    spend(static_cast<size_t>(key.weight()));
    return Undefined{fmt::format("item {}", to_repr(key))};
  }
  void spend(size_t bytes) override {
    if (bytes > options_.most_bytes - spent_)
      fail("the template makes more than {} MiB", options_.most_bytes >> 20);
    spent_ += bytes;
  }
  // As many steps as it takes time.
  void work(int64_t bytes) override {
    constexpr int64_t kBytesOfStep = 256;
    step(bytes / kBytesOfStep);
  }

 private:
  [[noreturn]] static void fail_safe(std::string_view name) {
    fail("{} of a text behind the filter safe is not known here", name);
  }

  enum class Flow { on, leave, next };

  void step(int64_t steps = 1) {
    steps_ += steps;
    if (steps_ > options_.most_steps)
      fail("the template takes more than {} steps", options_.most_steps);
  }
  void work_on(const Value& x) {
    if (x.text()) work(std::ssize(*x.text()));
  }
  // Names are looked for one after the other.
  void work_on_names(int64_t count) {
    constexpr int64_t kBytesOfName = 4;
    work(count * kBytesOfName);
  }
  const Value* find(std::string_view name, const Scope& scope) {
    int64_t looked = 0;
    const Value* found = scope.find(name, looked);
    work_on_names(looked);
    return found;
  }

  // A failure inside names the innermost line.
  template <class F>
  auto at(int line, F&& f) -> decltype(f()) {
    step();
    if (depth_ >= kDeepestSteps) fail("more than {} steps inside each other", kDeepestSteps);
    struct Level {
      int& depth;
      explicit Level(int& d) : depth(d) { ++depth; }
      ~Level() { --depth; }
    } level(depth_);
    try {
      return f();
    } catch (const Error& e) {
      if (located_) throw;
      located_ = true;
      fail_at(line, e.what());
    }
  }

  // ---- functions -------------------------------------------------------------------------------

  void add(const char* name, Value (Renderer::*call)(const Arguments&)) {
    global_.set(name,
                Function{name, [this, call](const Arguments& a) { return (this->*call)(a); }});
  }
  void add_functions() {
    const std::vector<std::pair<std::string, Value>> given = std::move(global_.names);
    global_.names.clear();
    add("range", &Renderer::range);
    add("namespace", &Renderer::make_namespace);
    add("dict", &Renderer::make_dict);
    add("raise_exception", &Renderer::raise_exception);
    add("strftime_now", &Renderer::strftime_now);
    for (const auto& [name, value] : given) global_.set(name, value);
  }

  Call call_of(const char* name, const Arguments& given) { return {*this, name, nothing_, given}; }

  Value range(const Arguments& given) {
    const Call c = call_of("range", given);
    c.only(3, {});
    const bool one = given.positional.size() == 1;
    const int64_t begin = one ? 0 : integer_of(c, c.need(0, "start")),
                  end = integer_of(c, c.need(one ? 0 : 1, "stop")),
                  by = integer_of(c, c.get(2, "step", int64_t{1}));
    if (by == 0) fail("range() by steps of 0");
    List out;
    for (int64_t i = begin; by > 0 ? i < end : i > end;) {
      spend(sizeof(Value));
      out.emplace_back(i);
      if (__builtin_add_overflow(i, by, &i)) break;
    }
    return out;
  }

  // Of dicts, pairs and names.
  Entries entries_of(const Arguments& given) {
    Entries out;
    const auto put = [&](const Value& key, const Value& value) {
      work_of_finding(*this, std::ssize(out), key);
      for (auto& entry : out)
        if (entry.first == key) {
          entry.second = value;
          return;
        }
      out.emplace_back(key, value);
    };
    for (const Value& x : given.positional)
      if (x.dict())
        for (const auto& [key, value] : x.dict()->entries) put(key, value);
      else
        for (const Value& pair : items_of(*this, x)) {
          const List two = items_of(*this, pair);
          if (two.size() != 2) fail("a dict is made of pairs");
          put(two[0], two[1]);
        }
    for (const auto& [name, value] : given.named) put(name, value);
    spend(out.size() * 2 * sizeof(Value));
    return out;
  }
  Value make_dict(const Arguments& given) { return Dict{entries_of(given)}; }
  Value make_namespace(const Arguments& given) {
    Namespace& made = spaces_.emplace_back();
    spend(sizeof(Namespace));
    for (const auto& [key, value] : entries_of(given))
      made.fields.emplace_back(written(*this, key), value);
    return Value(&made);
  }

  Value raise_exception(const Arguments& given) {
    fail("the template refuses: {}",
         written(*this, call_of("raise_exception", given).need(0, "message")));
  }

  Value strftime_now(const Arguments& given) {
    const Call c = call_of("strftime_now", given);
    const std::string format = text_of(c, c.need(0, "format"));
    if (format.size() > 200) fail("strftime_now() of a format of more than 200 bytes");
    std::tm time{};
    localtime_r(&options_.now, &time);
    std::array<char, 4096> out;
    const size_t size = std::strftime(out.data(), out.size(), format.c_str(), &time);
    return std::string(out.data(), size);
  }

  // ---- statements ------------------------------------------------------------------------------

  Flow body_(const Body& body, Scope& scope, std::string& out) {
    for (const Statement& s : body) {
      const Flow flow = at(s.line, [&] { return statement(s, scope, out); });
      if (flow != Flow::on) return flow;
    }
    return Flow::on;
  }

  void write(std::string& out, std::string_view text) {
    spend(text.size());
    out += text;
  }

  Flow statement(const Statement& s, Scope& scope, std::string& out) {
    switch (s.kind) {
      case SKind::data: write(out, s.text); return Flow::on;
      case SKind::print: write(out, written(*this, value(*s.expr, scope))); return Flow::on;
      case SKind::choose:
        for (const Statement::Branch& branch : s.branches)
          if (!branch.condition || value(*branch.condition, scope).truth())
            return body_(branch.body, scope, out);
        return Flow::on;
      case SKind::loop: return loop(s, scope, out);
      case SKind::set: set(s, scope); return Flow::on;
      case SKind::macro: scope.set(s.text, macro(s, scope)); return Flow::on;
      case SKind::scope: {
        const auto inner = std::make_shared<Scope>(&scope);
        const size_t begin = out.size();
        const Flow flow = body_(s.body, *inner, out);
        if (&out == &rendered_.text) rendered_.generations.emplace_back(begin, out.size());
        return flow;
      }
      case SKind::leave: return Flow::leave;
      case SKind::next: return Flow::next;
    }
    return Flow::on;
  }

  void assign(const std::vector<std::string>& targets, const Value& x, Scope& scope) {
    if (scope.is_kept) spend(targets.size() * sizeof(scope.names[0]));
    work_on_names(std::ssize(targets) * std::ssize(scope.names));
    if (targets.size() == 1) return scope.set(targets[0], x);
    const List items = items_of(*this, x);
    if (items.size() != targets.size())
      fail("{} values for {} names", items.size(), targets.size());
    for (size_t i = 0; i < items.size(); ++i) scope.set(targets[i], items[i]);
  }

  void set(const Statement& s, Scope& scope) {
    Value x;
    if (s.expr) {
      x = value(*s.expr, scope);
    } else {
      const auto inner = std::make_shared<Scope>(&scope);
      std::string text;
      body_(s.body, *inner, text);
      x = std::move(text);
      if (s.filter) {
        Scope held{&scope};
        held.set("", x);
        x = value(*s.filter, held);
      }
    }
    if (s.field.empty()) return assign(s.targets, x, scope);
    const Value* found = find(s.targets[0], scope);
    Namespace* space = found == nullptr ? nullptr : found->space();
    if (space == nullptr)
      fail("{} is no namespace, so its {} cannot be set", s.targets[0], s.field);
    work_on_names(std::ssize(space->fields));
    for (auto& field : space->fields)
      if (field.first == s.field) {
        field.second = std::move(x);
        return;
      }
    spend(sizeof(Value));
    space->fields.emplace_back(s.field, std::move(x));
  }

  Value loop_state(const List& items, size_t i) {
    const auto place = [&](int64_t add) { return static_cast<int64_t>(i) + add; };
    const auto left = static_cast<int64_t>(items.size() - i);
    Dict d;
    d.entries = {
        {"index", place(1)},
        {"index0", place(0)},
        {"first", i == 0},
        {"last", i + 1 == items.size()},
        {"length", Value::of_size(items.size())},
        {"revindex", left},
        {"revindex0", left - 1},
        {"depth", int64_t{1}},
        {"depth0", int64_t{0}},
        {"previtem", i > 0 ? items[i - 1] : Value(Undefined{"loop.previtem"})},
        {"nextitem", i + 1 < items.size() ? items[i + 1] : Value(Undefined{"loop.nextitem"})},
        {"cycle", Function{"cycle", [i](const Arguments& given) {
                             if (given.positional.empty()) fail("cycle() of nothing");
                             return given.positional[i % given.positional.size()];
                           }}}};
    return d;
  }

  Flow loop(const Statement& s, Scope& scope, std::string& out) {
    const Value over = value(*s.expr, scope);
    List items = items_of(*this, over);
    spend(items.size() * sizeof(Value));
    if (s.filter) {
      List kept;
      for (const Value& x : items) {
        Scope inner{&scope};
        assign(s.targets, x, inner);
        if (value(*s.filter, inner).truth()) kept.push_back(x);
      }
      items = std::move(kept);
    }
    if (items.empty() && !s.branches.empty()) {
      const auto inner = std::make_shared<Scope>(&scope);
      return body_(s.branches[0].body, *inner, out);
    }
    for (size_t i = 0; i < items.size(); ++i) {
      step();
      const auto inner = std::make_shared<Scope>(&scope);
      assign(s.targets, items[i], *inner);
      inner->set("loop", loop_state(items, i));
      if (body_(s.body, *inner, out) == Flow::leave) break;
    }
    return Flow::on;
  }

  // Macros see what stands around them, not where they are called: the names as they are when the
  // macro is called, those that were set behind it too, and also when what stood around is over. So
  // the scopes are kept until the end, by the renderer: a macro is itself a name in one of them,
  // and would hold itself. One thing differs from Jinja2: a loop's names are those of the turn that
  // the macro was defined in, not of the loop's last.
  Value macro(const Statement& s, Scope& scope) {
    for (Scope* at = &scope; at != &global_ && !at->is_kept; at = at->outside) {
      spend(kKeptScope + at->names.size() * sizeof(at->names[0]));
      at->is_kept = true;
      kept_.push_back(at->shared_from_this());
    }
    return Function{s.text, [this, &s, around = &scope](const Arguments& given) {
                      return run_macro(s, *around, given);
                    }};
  }
  Value run_macro(const Statement& s, Scope& around, const Arguments& given) {
    if (calls_ >= kDeepestCalls) fail("macros call each other more than {} deep", kDeepestCalls);
    ++calls_;
    const auto scope = std::make_shared<Scope>(&around);
    Scope& inner = *scope;
    const Call c = call_of(s.text.c_str(), given);
    if (given.positional.size() > s.targets.size())
      fail("{} has {} arguments at most", s.text, s.targets.size());
    work_on_names(std::ssize(given.named) * std::ssize(s.targets));
    for (const auto& entry : given.named)
      if (std::find(s.targets.begin(), s.targets.end(), entry.first) == s.targets.end())
        fail("{} has no argument {}", s.text, entry.first);
    const size_t needed = s.targets.size() - s.defaults.size();
    for (size_t i = 0; i < s.targets.size(); ++i) {
      const Value* found = c.find(i, s.targets[i]);
      Value x = found != nullptr ? *found
                : i < needed     ? Value(Undefined{s.targets[i]})
                                 : value(*s.defaults[i - needed], inner);
      inner.set(s.targets[i], std::move(x));
    }
    std::string out;
    body_(s.body, inner, out);
    --calls_;
    return out;
  }

  // ---- expressions -----------------------------------------------------------------------------

  Value value(const Expr& e, Scope& scope) {
    return at(e.line, [&] { return value_of(e, scope); });
  }

  Value value_of(const Expr& e, Scope& scope) {
    switch (e.kind) {
      case EKind::constant: return e.value;
      case EKind::name: {
        const Value* found = find(e.text, scope);
        return found != nullptr ? *found : Value(Undefined{e.text});
      }
      case EKind::attribute: return attribute(value(*e.of[0], scope), e.text);
      case EKind::item: return item(value(*e.of[0], scope), value(*e.of[1], scope));
      case EKind::slice: return slice(e, scope);
      case EKind::list: return values(e, scope);
      case EKind::tuple: return Value::tuple(values(e, scope));
      case EKind::dict: return dict(e, scope);
      case EKind::call: {
        const Value callee = value(*e.of[0], scope);
        if (callee.undefined()) fail("{} is not known here", callee.undefined()->name);
        if (!callee.function()) fail("{} cannot be called", callee.type());
        return callee.function()->call(arguments(e, scope));
      }
      case EKind::filter: return filter(e.text, value(*e.of[0], scope), arguments(e, scope));
      case EKind::test: return test(e.text, value(*e.of[0], scope), arguments(e, scope));
      case EKind::unary: return unary(e.text, value(*e.of[0], scope));
      case EKind::binary: return binary(e.text, value(*e.of[0], scope), value(*e.of[1], scope));
      case EKind::logical: {
        Value a = value(*e.of[0], scope);
        return a.truth() == (e.text == "or") ? a : value(*e.of[1], scope);
      }
      case EKind::compare: return comparison(e, scope);
      case EKind::choice:
        if (value(*e.of[0], scope).truth()) return value(*e.of[1], scope);
        return e.of[2] ? value(*e.of[2], scope) : Value(Undefined{"what no else gives"});
    }
    return {};
  }

  List values(const Expr& e, Scope& scope) {
    List out;
    spend(e.of.size() * sizeof(Value));
    for (const ExprPtr& x : e.of) out.push_back(value(*x, scope));
    return out;
  }

  Arguments arguments(const Expr& e, Scope& scope) {
    Arguments given;
    for (size_t i = 1; i < e.of.size(); ++i) {
      if (e.names[i].empty()) given.positional.push_back(value(*e.of[i], scope));
      else given.named.emplace_back(e.names[i], value(*e.of[i], scope));
    }
    return given;
  }

  Value dict(const Expr& e, Scope& scope) {
    Arguments pairs;
    List list;
    for (size_t i = 0; i < e.of.size(); i += 2)
      list.push_back(Value::tuple({value(*e.of[i], scope), value(*e.of[i + 1], scope)}));
    pairs.positional.emplace_back(std::move(list));
    return Dict{entries_of(pairs)};
  }

  Value slice(const Expr& e, Scope& scope) {
    const Value x = value(*e.of[0], scope);
    if (!x.text() && (!x.sequence() || x.sequence()->form == Sequence::Form::stream))
      fail("{} has no slices", x.type());
    work_on(x);
    const auto part = [&](size_t i) { return e.of[i] ? value(*e.of[i], scope) : Value(); };
    const Value from = part(1), to = part(2), by_given = part(3);
    const Call c = call_of("a slice", none_given_);
    const int64_t size = *length_of(x).integer(),
                  by = by_given.none() ? 1 : integer_of(c, by_given);
    if (by == 0 || by == std::numeric_limits<int64_t>::min()) fail("a slice by steps of {}", by);
    const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
    const auto bound = [&](const Value& given, int64_t otherwise) {
      if (given.none()) return otherwise;
      const int64_t at = integer_of(c, given);
      return std::clamp(at < 0 ? at + size : at, low, high);
    };
    const int64_t begin = bound(from, by > 0 ? low : high), end = bound(to, by > 0 ? high : low);
    if (x.text() && by == 1) {
      const std::string_view between =
          characters_between(*x.text(), static_cast<size_t>(begin), static_cast<size_t>(end));
      spend(between.size());
      return std::string(between);
    }
    const List made = x.text() ? items_of(*this, x) : List();
    const List& items = x.text() ? made : x.sequence()->items;
    List out;
    for (int64_t i = begin; by > 0 ? i < end : i > end;) {
      out.push_back(items[static_cast<size_t>(i)]);
      if (__builtin_add_overflow(i, by, &i)) break;
    }
    spend(out.size() * sizeof(Value));
    if (x.sequence()) return Value::of_form(std::move(out), x.sequence()->form);
    std::string text;
    for (const Value& character : out) text += *character.text();
    return text;
  }

  static const Value& defined(const Value& x) {
    if (x.undefined()) fail("{} is undefined", x.undefined()->name);
    return x;
  }

  Value unary(const std::string& sign, const Value& x) {
    if (sign == "not") return !x.truth();
    if (!defined(x).number()) fail("{} has no sign", x.type());
    if (x.real()) return sign == "-" ? -*x.real() : *x.real();
    const int64_t whole = x.integer() ? *x.integer() : *x.boolean();
    return sign == "+" ? whole : minus(0, whole);
  }

  Value binary(const std::string& sign, const Value& a, const Value& b) {
    if (sign == "~") {
      std::string text = written(*this, a) + written(*this, b);
      spend(text.size());
      return text;
    }
    defined(a);
    defined(b);
    if (sign == "+" && a.text() && b.text() && (a.safe() || b.safe())) {
      const auto part = [&](const Value& x) {
        return x.safe() ? *x.text() : escaped(*this, *x.text());
      };
      spend(part(a).size() + part(b).size());
      return Value::marked_safe(part(a) + part(b));
    }
    if (a.number() && b.number()) return arithmetic(sign, a, b);
    if (sign == "+" && a.text() && b.text()) {
      spend(a.text()->size() + b.text()->size());
      return *a.text() + *b.text();
    }
    if (sign == "+" && a.sequence() && b.sequence() && a.sequence()->form == b.sequence()->form &&
        a.sequence()->form != Sequence::Form::stream) {
      Sequence all = *a.sequence();
      all.items.insert(all.items.end(), b.sequence()->items.begin(), b.sequence()->items.end());
      spend(all.items.size() * sizeof(Value));
      return all;
    }
    if (sign == "*" && a.text() && b.integer()) {
      std::string out;
      for (int64_t i = 0; i < *b.integer(); ++i) write(out, *a.text()), step();
      return out;
    }
    fail("{} {} {} has no meaning here", a.type(), sign, b.type());
  }

  static Value arithmetic(const std::string& sign, const Value& a, const Value& b) {
    if (a.real() || b.real() || sign == "/")
      return real_arithmetic(sign, a.as_double(), b.as_double());
    const auto whole = [](const Value& v) { return v.integer() ? *v.integer() : *v.boolean(); };
    const int64_t x = whole(a), y = whole(b);
    if (sign == "+") return plus(x, y);
    if (sign == "-") return minus(x, y);
    if (sign == "*") return times(x, y);
    if (sign == "**") {
      if (y < 0) return real_arithmetic(sign, a.as_double(), b.as_double());
      const double size = std::pow(a.as_double(), b.as_double());
      if (!(std::abs(size) < 9e15)) fail_overflow();
      return static_cast<int64_t>(size);
    }
    if (y == 0) fail("a division by zero");
    if (y == -1) return sign == "%" ? 0 : minus(0, x);
    const int64_t rest = x % y, below = rest != 0 && (rest < 0) != (y < 0) ? 1 : 0;
    return sign == "%" ? rest + below * y : x / y - below;  // Python rounds down
  }
  static Value real_arithmetic(const std::string& sign, double x, double y) {
    if (sign == "+") return x + y;
    if (sign == "-") return x - y;
    if (sign == "*") return x * y;
    if (sign == "**") return std::pow(x, y);
    if (y == 0) fail("a division by zero");
    if (sign == "/") return x / y;
    if (sign == "//") return std::floor(x / y);
    return x - std::floor(x / y) * y;
  }

  Value comparison(const Expr& e, Scope& scope) {
    Value left = value(*e.of[0], scope);
    for (size_t i = 0; i < e.names.size(); ++i) {
      Value right = value(*e.of[i + 1], scope);
      if (!holds(e.names[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }
  bool holds(const std::string& sign, const Value& a, const Value& b) {
    work_on(a);
    work_on(b);
    if (sign == "in") return contains(*this, b, a);
    if (sign == "not in") return !contains(*this, b, a);
    work_of_comparing(*this, a, b);
    if (sign == "==") return a == b;
    if (sign == "!=") return !(a == b);
    const int order = compare(defined(a), defined(b));
    return sign == "<"    ? order < 0
           : sign == ">"  ? order > 0
           : sign == "<=" ? order <= 0
                          : order >= 0;
  }

  const RenderOptions& options_;
  const Value nothing_;
  const Arguments none_given_;
  Scope global_{nullptr};
  std::vector<std::shared_ptr<Scope>> kept_;  // that macros were defined in; of one, all around it
  std::deque<Namespace> spaces_;  // values only point at them, so that no two can hold each other
  Rendered rendered_;
  int64_t steps_ = 0;
  size_t spent_ = 0;
  int calls_ = 0, depth_ = 0;
  bool located_ = false;
};

}  // namespace

struct Template::Tree {
  Body body;
};

Template::Template(std::string_view source) {
  constexpr size_t kLargest = size_t{1} << 20;
  if (source.size() > kLargest) fail("a chat template of more than 1 MiB");
  tree_ = std::make_unique<const Tree>(Tree{parse(source)});
}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Rendered Template::render(const Variables& variables, const RenderOptions& options) const {
  return Renderer(variables, options).run(tree_->body);
}

}  // namespace moe::jinja
