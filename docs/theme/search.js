// The theme's search takes each word as the beginning of others, so "on" finds "once" and "my" finds "MyDataset".
// This worker leaves such words out of a question, as the index leaves them out of the pages.
const QUERY = 2;
addEventListener("message", ({ data }) => {
  if (data.type !== QUERY || data.data.includes('"')) return;
  const words = data.data.split(/\s+/);
  const kept = words.filter((word) => lunr.stopWordFilter(word.toLowerCase()));
  if (kept.length) data.data = kept.join(" ");
});
importScripts(`assets/javascripts/workers/${location.search.slice(1)}`);
