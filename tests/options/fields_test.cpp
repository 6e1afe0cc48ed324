// A list says of each field what every reader of it needs, and reads and writes the struct.
#include "options/fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.h"

namespace moe::fields_test {
namespace {

enum class Colour { red, green };

struct Paint {
  int64_t coats = 2;
  float gloss = 0.1f;
  bool wet = false;
  Colour colour = Colour::green;
  std::optional<Colour> under;
  std::string name;
};

FieldList fields(Paint& p) {
  const std::vector<std::string> colours = {"red", "green"};
  FieldList list;
  list.add("coats", p.coats, "how many; see @gloss").unit("coats").also({"n", "num_coats"});
  list.group("Looks");
  list.add("gloss", p.gloss, "how much it shines");
  list.add("wet", p.wet, "not dry");
  list.add_choice("colour", p.colour, colours, "red or green");
  list.add_choice("under_colour", p.under, colours, "of what lies below");
  list.add("name", p.name, "").recorded_only();
  return list;
}

TEST(Fields, AreFoundByAnyOfTheirNames) {
  Paint p;
  FieldList list = fields(p);
  EXPECT_EQ(list.find("num-coats"), &list.at("coats"));
  EXPECT_EQ(list.find("n"), &list.at("coats"));
  EXPECT_EQ(list.find("under-colour"), &list.at("under_colour"));
  EXPECT_EQ(list.find("coat"), nullptr);
  EXPECT_FAILS(list.at("coat"), "coat");
}

TEST(Fields, ReadAndWriteTheStruct) {
  Paint p;
  FieldList list = fields(p);
  list.at("coats").set(3);
  list.at("colour").set("red");
  list.at("under_colour").set("green");
  EXPECT_EQ(p.coats, 3);
  EXPECT_EQ(p.colour, Colour::red);
  EXPECT_EQ(p.under, Colour::green);
  EXPECT_FAILS(list.at("colour").set("gren"), "colour is \"gren\"; did you mean \"green\"?");
  p.under.reset();
  EXPECT_EQ(to_json(list).dump(),
            R"({"coats":3,"colour":"red","gloss":0.1,"name":"","under_colour":null,"wet":false})");
}

TEST(Fields, SayWhatAReaderNeeds) {
  Paint p;
  const Json rows = describe(fields(p));
  ASSERT_EQ(rows.size(), 5u) << "what only checkpoints keep is nobody's to set";
  EXPECT_EQ(
      rows[0].dump(),
      R"({"also":["n","num_coats"],"default":2,"group":"","help":"how many; see gloss","kind":"whole","name":"coats","required":false,"unit":"coats",)"
      R"("values":[]})");
  EXPECT_EQ(rows[3].at("default"), "green");
  EXPECT_EQ(rows[3].at("values").dump(), R"(["red","green"])");
  EXPECT_EQ(rows[3].at("group"), "Looks");
  EXPECT_TRUE(rows[4].at("default").is_null());
}

TEST(Fields, AreTakenOutAndPutTogether) {
  Paint p;
  FieldList list, from = fields(p);
  list.add(from.take({"wet", "coats"}));
  list.group("Rest");
  list.add(from.in_group("Looks"));
  std::vector<std::string> names;
  for (const Field& f : list) names.push_back(f.name + ":" + f.group);
  EXPECT_EQ(listed(names),
            "wet:Looks, coats:, gloss:Looks, colour:Looks, under_colour:Looks, name:Looks");
}

}  // namespace
}  // namespace moe::fields_test
