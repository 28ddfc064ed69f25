// Opens a report in a headless browser, moves every slider and every menu, and prints what happened as JSON.
//     node report_page.js FILE.html FOLDER_WITH_node_modules
const path = require("node:path");
const { pathToFileURL } = require("node:url");

async function load(folder, name) {
  const found = require.resolve(name, { paths: [folder] });
  return (await import(pathToFileURL(found).href)).default;
}

// In the page: each widget takes other values; does the picture of the map change each time? Ends with the value over the
// first and the last axis, every slider at its end, and returns what is drawn then.
async function moveAll() {
  const until = async (holds) => {
    for (let turn = 0; turn < 200; turn++) {
      if (holds()) return true;
      await new Promise((done) => setTimeout(done, 25));
    }
    return false;
  };
  const models = [...Bokeh.documents[0]._all_models.values()];
  const named = (name) => models.find((m) => m.name === name);
  const source = models.find((m) => m.type === "ColumnDataSource" && m.data.image);
  const charts = models.filter((m) => m.type === "Figure").map((m) => m.name);
  if (!source) return { charts, moved: {}, drawn: null };
  const mapper = models.find((m) => m.type === "LinearColorMapper");
  const pixels = () => [...source.data.image[0]].map((v) => (Number.isFinite(v) ? v : null));
  const picture = () => JSON.stringify([pixels(), source.data.image[0].shape, source.data.x, mapper.low, mapper.high]);
  const changes = async (act) => {
    const before = picture();
    act();
    return until(() => picture() !== before);
  };

  await until(() => source.data.image[0].length > 1);
  const moved = {};
  for (const menu of models.filter((m) => m.type === "Select")) {
    const start = menu.value;
    moved[menu.name] = [];
    for (const option of [...menu.options.filter((o) => o !== start), start]) {
      moved[menu.name].push(await changes(() => { menu.value = option; }));
    }
  }
  const axes = named("across").options;
  named("across").value = axes[0];
  named("up").value = axes[axes.length - 1];
  await until(() => named(axes[1]).visible && !named(axes[0]).visible);
  for (const slider of models.filter((m) => m.type === "Slider" && m.visible)) {
    const title = slider.title;
    moved[slider.name] = [];
    for (const value of [slider.start, slider.end]) {
      moved[slider.name].push((await changes(() => { slider.value = value; })) && slider.title !== title);
    }
  }
  return { charts, moved, drawn: { pixels: pixels(), shape: source.data.image[0].shape } };
}

async function main(file, folder) {
  const chromium = await load(folder, "@sparticuz/chromium");
  const puppeteer = await load(folder, "puppeteer-core");
  const browser = await puppeteer.launch({
    args: [...chromium.args, "--no-sandbox"],
    executablePath: await chromium.executablePath(),
    headless: "shell",
    defaultViewport: { width: 1260, height: 1000 },
  });
  try {
    const page = await browser.newPage();
    const errors = [];
    const requests = [];
    page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
    page.on("pageerror", (error) => errors.push(String(error)));
    page.on("request", (request) => requests.push(request.url().slice(0, 200)));
    await page.goto(pathToFileURL(path.resolve(file)).href, { waitUntil: "load", timeout: 60000 });
    await page.waitForFunction("Bokeh.documents.length === 1 && Bokeh.documents[0].is_idle", { timeout: 60000 });
    const found = await page.evaluate(moveAll);
    console.log(JSON.stringify({ errors, requests, ...found }));
  } finally {
    await browser.close();
  }
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
