// Layers in which a table says the experts of a token's id, against the scalar twin, and what of
// such tables is refused.
#include "core/error.h"
#include "support/model_check.h"

namespace moe::test::expert_table_test {
namespace {

ModelConfig with_tables() {
  ModelConfig c = small();
  c.routing = default_options(find_recipe("deepseek-v4"), 6, 2, c.layers);
  weigh_losses(c.routing);
  c.table_layers = {0};
  return c;
}

TEST(ExpertTable, MatchesItsTwin) {
  expect_gradients({.name = "a table in one layer", .config = with_tables()});
}

TEST(ExpertTable, NamesEachExpertOfAnIdOnce) {
  Model model(with_tables());
  model.initialise(3);
  const Param* table = model.find(Part::router, ParamKind::table, 0, false);
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(model.find(Part::router, ParamKind::table, 1, false), nullptr);
  EXPECT_EQ(model.find(Part::router, ParamKind::selection_bias, 0, false), nullptr);
  for (int64_t id = 0; id < table->value.rows(); ++id)
    EXPECT_NE(table->value.row<float>(id)[0], table->value.row<float>(id)[1]);
}

TEST(ExpertTable, AnExpertThatIsNotThereIsNamed) {
  const Case item{.name = "", .config = with_tables()};
  Model model(item.config);
  draw_params(model, 3);
  model.enable_grads();
  Param* table = model.find(Part::router, ParamKind::table, 0, false);
  for (int64_t id = 0; id < table->value.rows(); ++id) table->value.row<float>(id)[1] = 6;
  moe::Run run(1);
  try {
    train_once(model, run, input(item, 1), spec_of(item));
    ADD_FAILURE() << "expert 6 of 6 was taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("says expert 6"), std::string::npos) << e.what();
  }
}

TEST(ExpertTable, GoesWithTokensThatChooseAlone) {
  ModelConfig c = with_tables();
  c.dense_first = 1;
  EXPECT_THROW(validate(c), Error);
  c = with_tables();
  c.routing = default_options(find_recipe("hash"), 6, 1, c.layers);
  EXPECT_THROW(validate(c), Error);
}

}  // namespace
}  // namespace moe::test::expert_table_test
