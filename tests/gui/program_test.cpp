/// The built program: what it links, that it starts, what it draws.

#include <QImage>
#include <QProcess>

#include "tests/gui/gui_test.hpp"

namespace moeplan::gui_test {
namespace {

QByteArray run(const QStringList& arguments) {
  QProcess process;
  process.start(QStringLiteral(MOEPLAN_GUI_PROGRAM), arguments);
  EXPECT_TRUE(process.waitForFinished(240000));
  EXPECT_EQ(process.exitCode(), 0) << process.readAllStandardError().toStdString();
  return process.readAllStandardOutput();
}

TEST(GuiProgram, LinksQCustomPlotAndNothingOfCuda) {
  std::ifstream in(MOEPLAN_GUI_PROGRAM, std::ios::binary);
  const std::string program{std::istreambuf_iterator<char>(in), {}};
  ASSERT_GT(program.size(), 100000u);
  EXPECT_NE(program.find("libQCustomPlotQt6.so"), std::string::npos);
  for (const char* cuda : {"libcudart", "libcuda.so", "libnccl"}) EXPECT_EQ(program.find(cuda), std::string::npos) << cuda;
}

TEST(GuiProgram, StartsWithTheWorkedExampleAndSaysHowLongItTook) {
  const QByteArray said = run({QStringLiteral("--startup-time")});
  EXPECT_TRUE(said.endsWith(" ms\n")) << said.toStdString();
  RecordProperty("startup", said.trimmed().toStdString());
}

TEST(GuiProgram, DrawsAPageAtThreeHundredPerCentWithoutClippingItsWindow) {
  QTemporaryDir folder;
  const QString file = folder.filePath(QStringLiteral("shot.png"));
  run({QStringLiteral("--screenshot"), file, QStringLiteral("--no-wait"), QStringLiteral("--scale"), QStringLiteral("300"), QStringLiteral("--theme"), QStringLiteral("dark"), QStringLiteral("--size"), QStringLiteral("2400x1500")});
  const QImage image(file);
  ASSERT_FALSE(image.isNull());
  EXPECT_EQ(image.width(), 2400);
  EXPECT_LT(qGray(image.pixel(image.width() / 2, image.height() - 3)), 100) << "dark";
}

}  // namespace
}  // namespace moeplan::gui_test
