// Two tables: where customers live, and what they ordered. Counting and summing need every row of
// an item or a customer, so that no small number of rows of the cache holds the answer; a town
// needs one row of each table, of which the question names neither.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "src/eval/tasks/fill_to_length.h"
#include "src/eval/tasks/needle_task.h"
#include "src/eval/tasks/random_draws.h"
#include "src/eval/tasks/tasks.h"

namespace topkv {
namespace {

constexpr std::int64_t table_tokens = 16;
constexpr std::int64_t orders_of_customer = 16;  ///< on average
constexpr std::int64_t least_orders = 8;

constexpr std::array<std::string_view, 8> items = {"lanterns", "kettles", "baskets", "hammers",
                                                   "blankets", "mirrors", "candles", "ladders"};

struct Order {
  std::int64_t number = 0;
  std::size_t customer = 0;
  std::string_view item;
  std::int64_t pieces = 0;
};

struct Tables {
  std::vector<std::string> customers;
  std::vector<std::string_view> homes;  ///< of each customer
  std::vector<Order> orders;
};

Tables random_tables(std::int64_t orders, std::uint64_t seed) {
  Random random(seed);
  Tables tables;
  tables.customers = draw_words(random, std::max<std::int64_t>(2, orders / orders_of_customer));
  for (std::size_t c = 0; c < tables.customers.size(); ++c) {
    tables.homes.push_back(random.pick(towns()));
  }
  std::int64_t number = random.between(1000, 1999);
  for (std::int64_t i = 0; i < orders; ++i) {
    Order order;
    order.number = number;
    number += random.between(1, 9);
    order.customer = static_cast<std::size_t>(random.between(0, std::ssize(tables.customers) - 1));
    order.item = random.pick(items);
    order.pieces = random.between(1, 20);
    tables.orders.push_back(order);
  }
  return tables;
}

std::string tables_text(const Tables& tables) {
  std::string text =
      "Read the two tables below. I will ask a question about them afterwards.\n\nCustomers and "
      "the "
      "towns where they live:\n| customer | town |\n| --- | --- |\n";
  for (std::size_t c = 0; c < tables.customers.size(); ++c) {
    text += fmt::format("| {} | {} |\n", tables.customers[c], tables.homes[c]);
  }
  text += "\nOrders:\n| order | customer | item | pieces |\n| --- | --- | --- | --- |\n";
  for (const Order& order : tables.orders) {
    text += fmt::format("| {} | {} | {} | {} |\n", order.number, tables.customers[order.customer],
                        order.item, order.pieces);
  }
  return text + "\n";
}

enum class Asked : std::uint8_t { count, sum, hop };

struct Question {
  std::string text;
  std::string answer;
};

/// About some order of the tables: its item, its customer, or that customer's town.
Question question_of(Asked asked, const Tables& tables, std::uint64_t seed) {
  Random random(seed);
  const Order& order =
      tables.orders[static_cast<std::size_t>(random.between(0, std::ssize(tables.orders) - 1))];
  const std::string& customer = tables.customers[order.customer];
  if (asked == Asked::count) {
    const auto count = std::ranges::count(tables.orders, order.item, &Order::item);
    return {fmt::format("Question: How many rows of the table of orders have the item {0}? Answer: "
                        "The number of rows with the item {0} is",
                        order.item),
            fmt::format("{}", count)};
  }
  if (asked == Asked::sum) {
    std::int64_t pieces = 0;
    for (const Order& other : tables.orders) {
      if (other.customer == order.customer) pieces += other.pieces;
    }
    return {fmt::format("Question: How many pieces did {0} order in all? Answer: The sum of the "
                        "pieces ordered by {0} is",
                        customer),
            fmt::format("{}", pieces)};
  }
  return {fmt::format("Question: In which town does the customer of order {0} live? Answer: The "
                      "customer of order {0} lives in",
                      order.number),
          std::string(tables.homes[order.customer])};
}

EvalSample make_sample(Asked asked, const SampleOrder& order, const TaskTokens& tokens) {
  EvalSample sample;
  sample.predict = table_tokens;
  sample.one_line = true;
  const auto tables = [&](std::int64_t orders) { return random_tables(orders, order.seed); };
  const auto question = [&](const Tables& of) {
    return question_of(asked, of, mix_seed(order.seed, 1));
  };
  // Names and numbers in the question differ by a few tokens with the number of orders: text and
  // question are counted together.
  const std::int64_t room = tokens.room(order.length, "", sample.predict);
  const std::int64_t orders = most_units(room, least_orders, 1, [&](std::int64_t count) {
    const Tables made = tables(count);
    return tokens.count(tables_text(made)) + tokens.count(question(made).text);
  });
  const Tables made = tables(orders);
  const Question final_question = question(made);
  sample.question = final_question.text;
  sample.references = {final_question.answer};
  sample.context = tokens.context(tables_text(made));
  return sample;
}

}  // namespace

std::vector<EvalTask> table_tasks(const TaskTokens& tokens) {
  std::vector<EvalTask> all;
  for (const auto& [name, asked] :
       {std::pair("tables_count", Asked::count), std::pair("tables_sum", Asked::sum),
        std::pair("tables_hop", Asked::hop)}) {
    EvalTask task;
    task.name = task.seed_name = name;
    task.haystack = "tables";
    task.scoring = asked == Asked::hop ? Scoring::any : Scoring::number;
    task.make = [asked = asked, tokens](const SampleOrder& order) {
      return make_sample(asked, order, tokens);
    };
    all.push_back(std::move(task));
  }
  return all;
}

}  // namespace topkv
