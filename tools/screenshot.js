// Takes the picture of a report in a headless browser.
//     node tools/screenshot.js FILE.html PICTURE.png FOLDER_WITH_node_modules
// Prints where the section "Other cache sizes" begins, in pixels from the top.
const path = require("node:path");
const { pathToFileURL } = require("node:url");

async function load(folder, name) {
  const found = require.resolve(name, { paths: [folder] });
  return (await import(pathToFileURL(found).href)).default;
}

// In the page: where the section with this heading begins, in pixels from the top.
function bottomOf(heading) {
  const found = [...document.querySelectorAll("h2")].find((h) => h.textContent === heading);
  return Math.round(found.closest("section").getBoundingClientRect().top + window.scrollY);
}

async function main(file, picture, folder) {
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
    await page.goto(pathToFileURL(path.resolve(file)).href, { waitUntil: "load", timeout: 60000 });
    await page.waitForFunction("Bokeh.documents.length === 1 && Bokeh.documents[0].is_idle", { timeout: 60000 });
    await new Promise((done) => setTimeout(done, 1500));
    await page.screenshot({ path: picture, fullPage: true });
    console.log(await page.evaluate(bottomOf, "Other cache sizes"));
  } finally {
    await browser.close();
  }
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
